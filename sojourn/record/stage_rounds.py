"""The names of stages that are repeated: a stage NAME is NAME_2 in the second round."""

from __future__ import annotations

import re
from collections.abc import Iterable


def round_name(stage: str, round: int) -> str:
    """Returns the name of a stage in a round; rounds are counted from 1."""
    return stage if round == 1 else f"{stage}_{round}"


def rounds_of(stage: str, names: Iterable[str]) -> list[str]:
    """Returns those of the names that are rounds of a stage, the first round first."""
    pattern = re.compile(rf"{re.escape(stage)}(?:_([1-9][0-9]*))?")
    found = [(int(match[1] or 1), name) for name in names if (match := pattern.fullmatch(name))]
    return [name for _, name in sorted(found)]
