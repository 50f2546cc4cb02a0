"""Which groups a step trained that were recorded before: replayed ones, and those of further passes over recorded ones.

Their episodes are stored once, with the step that recorded them first. A step that trains them again stores only the
place of that record, and the origin that the group has in this step.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from sojourn.types import Group


class ReusedGroup(NamedTuple):
    """A group that a step trained again. It is recorded as group `of_place` of step `of_step` of the same stage; `part`
    is the number of the step's file that names it."""

    stage: str
    step: int
    part: int
    origin: str
    of_step: int
    of_place: int

    @property
    def age(self) -> int:
        """Returns how many steps ago it was recorded."""
        return self.step - self.of_step


COLUMNS = ReusedGroup._fields


def reused(
    database: sqlite3.Connection, stage: str, step: int, part: int, groups: Sequence[Group]
) -> list[ReusedGroup]:
    """Returns the rows of groups that a step trains again and that its stage recorded."""
    statement = "SELECT step, place FROM episodes WHERE id = ? AND stage = ? ORDER BY step, part LIMIT 1"
    found = ((group, database.execute(statement, (group.episodes[0].id, stage)).fetchone()) for group in groups)
    return [ReusedGroup(stage, step, part, group.origin, *place) for group, place in found if place is not None]
