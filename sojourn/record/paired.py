"""Compares evaluations of one run task by task, as all of them play the same tasks.

The test is McNemar's (1947) in its exact form, a sign test: of the tasks whose success changed, as many would be lost
as gained if the policies were equally good. Tasks that both solve, or neither, say nothing of the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from sojourn.intervals import Estimate
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.summary import Summary

UNLIKELY = 0.01  # a difference that chance gives less often than that, however many evaluations are compared, is clear


class Evaluation(NamedTuple):
    """An evaluation of a run, and after how many steps of the whole run it was made. `by_task` reads the success of
    each of its tasks, none where their episodes are not recorded."""

    name: str
    success: Estimate
    by_task: Callable[[], Mapping[str, float]] = dict
    steps: int = 0


class Fall(NamedTuple):
    """Says that `worse` is clearly worse than `better`: `lost` tasks succeed less often, `gained` ones more often."""

    better: Evaluation
    worse: Evaluation
    lost: int
    gained: int
    chance: float

    @property
    def tasks(self) -> str:
        return f"{self.lost} tasks lost, {self.gained} gained, p = {self.chance:.2g}"


def evaluations(run: RunFolder, store: EpisodeStore) -> list[Evaluation]:
    """Returns the evaluations of a run, oldest first."""
    starts = run.stage_starts
    found: list[Evaluation] = []
    for one in run.evaluations():
        name = str(one["name"])
        success = Summary.from_json(one["summary"]).overall.success
        found.append(
            Evaluation(
                name, success, partial(_by_task, store, name), starts.get(str(one["stage"]), 0) + int(one["step"])
            )
        )
    return found


def _by_task(store: EpisodeStore, evaluation: str) -> dict[str, float]:
    statement = "SELECT task, avg(success) FROM episodes WHERE stage = ? AND success IS NOT NULL GROUP BY task"
    return dict(store.rows(statement, (f"evaluation-{evaluation}",), lambda row: (str(row[0]), float(row[1]))))


def clear_fall(earlier: Sequence[Evaluation], last: Evaluation) -> Fall | None:
    """Returns by how much the last evaluation is worse than the best of the earlier ones, None where it is not clearly
    so."""
    best = max(earlier, key=lambda one: one.success.mean, default=None)
    if best is None:
        return None
    before, after = best.by_task(), last.by_task()
    both = before.keys() & after.keys()
    lost = sum(after[task] < before[task] for task in both)
    gained = sum(after[task] > before[task] for task in both)
    chance = sign_test(lost, gained)
    clear = lost > gained and chance * len(earlier) <= UNLIKELY  # Bonferroni: the best was chosen among them
    return Fall(best, last, lost, gained, chance) if clear else None


def sign_test(lost: int, gained: int) -> float:
    """Returns the exact two-sided probability of a split at least as uneven as this, where both are equally likely."""
    changed, fewer = lost + gained, min(lost, gained)
    tail = sum(math.comb(changed, k) for k in range(fewer + 1)) / 2**changed
    return min(1.0, 2 * tail)
