"""Finds where a recorded group came from: its source, its first record, and the steps that trained it again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sojourn.record.episodes.episode_row import EpisodeRow, from_values
from sojourn.record.episodes.reused import COLUMNS, ReusedGroup
from sojourn.record.episodes.store import EpisodeStore

_COPY = re.compile(r"#\d+-\d+$")  # what `success_replay` appends to the id of an episode, which it copies


@dataclass(frozen=True)
class RecordedOrigin:
    """Holds the origin of an episode's group, None where an older Sojourn recorded it; the first record of the episode,
    where this is another one; and the steps that trained the group again."""

    origin: str | None
    first: EpisodeRow | None
    uses: Sequence[ReusedGroup]


def recorded_origin(store: EpisodeStore, row: EpisodeRow) -> RecordedOrigin:
    return RecordedOrigin(row.origin, first_record(store, row), uses_of(store, row.stage, row.step, row.place))


def count_origins(origins: Iterable[str | None]) -> dict[str, int]:
    """Returns how many groups are of each origin; nothing where all are the policy's, or were recorded without one."""
    counts = Counter(origin or "unknown" for origin in origins)
    return dict(counts) if counts.keys() - {"policy", "unknown"} else {}


def reused_in(store: EpisodeStore, stage: str, step: int) -> list[ReusedGroup]:
    """Returns the groups that a step trained again, in the order in which it trained them."""
    where = "FROM reused WHERE stage = ? AND step = ? ORDER BY part, rowid"
    return store.rows(f"SELECT {', '.join(COLUMNS)} {where}", (stage, step), lambda row: ReusedGroup(*row))


def all_reused(store: EpisodeStore) -> list[ReusedGroup]:
    """Returns the groups that any step trained again, in the order in which they were trained."""
    statement = f"SELECT {', '.join(COLUMNS)} FROM reused ORDER BY rowid"
    return store.rows(statement, (), lambda row: ReusedGroup(*row))


def uses_of(store: EpisodeStore, stage: str, step: int, place: int) -> list[ReusedGroup]:
    """Returns in which steps the group that is recorded at a place was trained again."""
    where = "FROM reused WHERE stage = ? AND of_step = ? AND of_place = ? ORDER BY rowid"
    return store.rows(f"SELECT {', '.join(COLUMNS)} {where}", (stage, step, place), lambda row: ReusedGroup(*row))


def first_record(store: EpisodeStore, row: EpisodeRow) -> EpisodeRow | None:
    """Returns the first record of an episode that an earlier step of the run recorded, too, or of which it is a copy;
    None where it is its own first record, or where an older Sojourn recorded it."""
    statement = "SELECT {columns} FROM episodes WHERE id = ? ORDER BY row LIMIT 1"
    found = [] if row.origin is None else store.rows(statement, (_COPY.sub("", row.id),), from_values)
    return next((first for first in found if (first.stage, first.step) != (row.stage, row.step)), None)
