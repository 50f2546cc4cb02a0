"""Reads groups of the run back from its records."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import EpisodeRow, from_values
from sojourn.record.episodes.group import GroupRecord, group_of
from sojourn.record.episodes.labels import label_of, number_in_group
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore

YOUNGEST = 2  # steps: what the step before played may still be being written


def recorded_group(store: EpisodeStore, stage: str, step: int, entry: Any) -> GroupRecord:
    """Returns the group of an entry, which has a `slot`, a `task` and a `label`: whole as it was played, also where a
    filter took episodes out of what was trained. A slot may have played the task more than once: the label says which
    group it is."""
    slot, task, label = int(entry["slot"]), f"{int(entry['task']):016x}", int(entry["label"])
    rows = [row for row in store.query(stage=stage, step=step, task=task) if row.slot == slot]
    if rows and not label:  # an older run's entries have none
        label = label_number(rows[-1].id)
    record = _whole(list(store.read_each(row for row in rows if label_number(row.id) == label)))
    if record is None:
        raise RecordError(
            f"stage '{stage}', step {step}: the group of slot {slot} is not in {store.path} any more: replay needs the "
            "records of its run"
        )
    return record


class PlayedGroup(NamedTuple):
    """Says where a group that was played is recorded: in these places of a step, two where a filter parted it."""

    stage: str
    step: int
    places: tuple[int, ...]


def played_groups(rows: Iterable[EpisodeRow]) -> list[PlayedGroup]:
    """Returns the groups to which the rows of a stage belong, as they were played: what a filter left out is recorded
    in another place than what was trained."""
    by_place = defaultdict[tuple[str, int, int], list[EpisodeRow]](list)
    for row in rows:
        by_place[row.stage, row.step, row.place].append(row)
    found = defaultdict[tuple[Any, ...], list[int]](list)
    for (stage, step, place), members in by_place.items():
        labels = {label_of(row.id) for row in members}
        whole = len(labels) > 1 or labels == {""}  # of several plays, or not played here
        found[stage, step, members[0].origin, members[0].slot, place if whole else labels.pop()].append(place)
    return [PlayedGroup(stage, step, tuple(places)) for (stage, step, *_), places in found.items()]


def read_played(store: EpisodeStore, groups: Sequence[PlayedGroup]) -> list[GroupRecord | None]:
    """Returns the records of groups; None for one of which nothing can be read. Each file is opened once."""
    by_step = defaultdict[tuple[str, int], set[int]](set)
    for group in groups:
        by_step[group.stage, group.step].update(group.places)
    read = dict[tuple[str, int, int], list[tuple[EpisodeRow, Record | RecordError]]]()
    for (stage, step), places in by_step.items():
        statement = (
            "SELECT {columns} FROM episodes WHERE stage = ? AND step = ? AND place IN (SELECT value FROM json_each(?)) "
            "ORDER BY part, number"
        )
        rows = store.rows(statement, (stage, step, json.dumps(sorted(places))), from_values)
        for row, record in store.read_each(rows):
            read.setdefault((stage, step, row.place), []).append((row, record))
    return [_whole([pair for place in one.places for pair in read.get((*one[:2], place), ())]) for one in groups]


def _whole(read: list[tuple[EpisodeRow, Record | RecordError]]) -> GroupRecord | None:
    """Returns the group of records that are all it has, in the order in which its episodes were numbered."""
    parted = len({row.place for row, _ in read}) > 1
    return group_of(sorted(read, key=lambda pair: number_in_group(pair[0].id)) if parted else read)


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


def label_number(id: str) -> int:
    """Returns a number that tells the labels apart under which groups were played, by the id of an episode."""
    return crc32(label_of(id).encode())
