"""What is known of tasks before they are played, as numbers from which their difficulty may be predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sojourn.types import Task

MAX_FEATURES = 256


def features_of(tasks: Sequence[Task], labels: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Returns one row per task: 1 first, then whether it has each label (its world and tags), then each number of
    `Task.data` that is not the same everywhere, standardised and cut at 3 standard deviations: (n, k).

    Labels of all tasks or of a single one are left out, and of others all but the most common `MAX_FEATURES`.
    """
    counts = Counter(label for each in labels for label in set(each))
    shared = [label for label, count in counts.most_common() if 1 < count < len(tasks)][:MAX_FEATURES]
    columns = [np.ones(len(tasks))]
    columns += [np.array([label in each for each in labels], dtype=np.float64) for label in shared]
    for key in sorted({key for task in tasks for key in task.data}):
        values = np.array([_number(task.data.get(key)) for task in tasks])
        known = np.isfinite(values)
        if known.any() and (deviation := values[known].std()) > 0:
            scaled = np.where(known, (values - values[known].mean()) / deviation, 0.0)
            columns.append(np.clip(scaled, -3, 3))
    return np.stack(columns[: MAX_FEATURES + 1], axis=1)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e15 else np.nan
