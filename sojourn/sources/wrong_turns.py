"""Finds where a bad play of a task left the way of a good one, and its first wrong turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal

import numpy as np

from sojourn.branching.mistake import mistakes
from sojourn.same_action import same_action
from sojourn.types import Trajectory, Turn

FirstWrong = Literal["divergence", "mistake", "end"]  # which turn of a bad play is its first wrong one


def shared_turns(one: Trajectory, other: Trajectory) -> int:
    """Returns in how many of their first turns two plays of a task were shown the same and did the same."""
    pairs = zip(one.turns, other.turns, strict=False)
    return sum(1 for _ in takewhile(lambda pair: _shown(pair[0]) == _shown(pair[1]) and _acted_alike(*pair), pairs))


def divergence(bad: Trajectory, good: Trajectory) -> int | None:
    """Returns the number of the first turn in which two plays of a task acted differently; None where one of them does
    all that the other does, or where they were shown different things until then, so that their states differ."""
    shared = shared_turns(bad, good)
    if shared == min(len(bad.turns), len(good.turns)) or _shown(bad.turns[shared]) != _shown(good.turns[shared]):
        return None
    return shared


def first_wrong(rule: FirstWrong, bad: Trajectory, good: Trajectory, better: Sequence[Trajectory]) -> int | None:
    """Returns the number of the first wrong turn of a bad play, in or after its divergence from a good one; None where
    it has none. `better` are all plays that are good beside it."""
    diverged = divergence(bad, good)
    if diverged is None:
        return None
    if rule == "end":
        return len(bad.turns) - 1
    if rule == "divergence":
        shared = max(shared_turns(bad, other) for other in better)
        return shared if shared < len(bad.turns) else None
    found = (number for number, _ in mistakes((bad.agent, turn) for turn in bad.turns))
    return next((number for number in found if number >= diverged), None)


def _shown(turn: Turn) -> list[Any]:
    """Returns what a turn was shown; ids of calls may differ from play to play."""
    return [(message.role, message.text, message.images) for message in turn.observed]


def _acted_alike(one: Turn, other: Turn) -> bool:
    if one.message is not None and other.message is not None:
        return same_action(one.message, other.message)
    return np.array_equal(one.sample.tokens, other.sample.tokens)
