"""Puts a recorded group together from the records of its episodes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.step_file import Record
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True)
class GroupRecord:
    """A group with its judgements; `credits` is empty where none were recorded."""

    stage: str
    step: int
    group: Group
    scores: tuple[Score, ...]
    credits: tuple[Credit, ...]


def group_of(members: Sequence[tuple[EpisodeRow, Record | RecordError]]) -> GroupRecord | None:
    """Returns the group of the records that could be read, None if none could; warns of each that is left out."""
    records: list[Record] = []
    for row, loaded in members:
        if isinstance(loaded, RecordError):
            warnings.warn(f"episode {row.id} is left out: {loaded}", RuntimeWarning, stacklevel=3)
        else:
            records.append(loaded)
    if not records:
        return None
    first = members[0][0]
    return GroupRecord(
        stage=first.stage,
        step=first.step,
        group=Group(
            first.slot,
            records[0].episode.task,
            tuple(record.episode for record in records),
            first.origin or "policy",
        ),
        scores=tuple(score for record in records for score in record.scores),
        credits=tuple(credit for record in records for credit in record.credits),
    )
