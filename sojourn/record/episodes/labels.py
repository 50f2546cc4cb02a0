"""Reads what the ids of episodes say of the groups in which they were played: `label/number-task`."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r".+/\d{1,9}-[^/]*", re.ASCII | re.DOTALL)


def label_of(id: str) -> str:
    """Returns the label under which the group of an episode was played."""
    return id.rpartition("/")[0]


def number_in_group(id: str) -> int:
    """Returns the number of an episode in its group."""
    return int(id.rpartition("/")[2].partition("-")[0])


def is_numbered(id: str) -> bool:
    """Returns whether an id has this form, as those of episodes that a run played have."""
    return _NUMBERED.fullmatch(id) is not None
