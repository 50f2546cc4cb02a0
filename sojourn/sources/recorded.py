"""Reads groups of the run back from its records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import RecordError
from sojourn.record.episodes.group import GroupRecord, group_of
from sojourn.record.episodes.store import EpisodeStore

YOUNGEST = 2  # steps: what the step before played may still be being written


def recorded_group(store: EpisodeStore, stage: str, step: int, slot: int, task: str) -> GroupRecord:
    """Returns the group that a slot played of a task, whole as it was played, also where a filter took episodes out of
    what was trained; the last one where the slot played the task more than once."""
    rows = [row for row in store.query(stage=stage, step=step, task=task) if row.slot == slot]
    last = [row for row in rows if _label(row.id) == _label(rows[-1].id)]
    read = list(store.read_each(last))
    record = group_of(sorted(read, key=lambda pair: number_in_group(pair[0].id)) if len(read) > 1 else read)
    if record is None:
        raise RecordError(
            f"stage '{stage}', step {step}: the group of slot {slot} is not in {store.path} any more: replay needs the "
            "records of its run"
        )
    return record


def entries_state(entries: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Returns a table of entries as a state, by their fields."""
    return {name: np.array(entries[name]) for name in entries.dtype.names or ()}


def entries_of(state: Mapping[str, Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns the table that a state holds; what an older run does not know is 0."""
    entries = np.zeros(len(state["step"]), dtype)
    for name in dtype.names or ():
        if name in state:
            entries[name] = state[name]
    return entries


def number_in_group(id: str) -> int:
    """Returns the number of an episode in its group, by its id: `label/number-task`."""
    return int(id.rpartition("/")[2].partition("-")[0])


def _label(id: str) -> str:
    """Returns the label under which the group of an episode was played."""
    return id.rpartition("/")[0]
