"""Finds what came right after each turn: what a user said next, or a tool answered."""

from __future__ import annotations

from collections.abc import Sequence

from sojourn.gateway.placement import Cause, same_reply
from sojourn.types import Message, Role, Trajectory

APART = tuple(f"window_{cause}" for cause in (Cause.SIDE, Cause.REPEATED))  # turns that go on from none


def next_states(trajectory: Trajectory) -> list[tuple[Message, ...]]:
    """Returns, for each turn, the messages of users and tools that the next turn in time whose context goes on from it
    observed: none for one from which nothing goes on, such as the last."""
    found: list[tuple[Message, ...]] = [()] * len(trajectory.turns)
    for turn, before in reversed([*zip(trajectory.turns, predecessors(trajectory), strict=True)]):
        if before >= 0:
            found[before] = tuple(one for one in turn.observed if one.role in (Role.USER, Role.TOOL))
    return found


def predecessors(trajectory: Trajectory) -> list[int]:
    """Returns, for each turn, the earlier one that its context goes on from; -1 where there is none.

    It is the parent. A context that was written anew goes on from the latest turn that gave the last reply in it or,
    where it shows no reply, such as a page alone, from the turn before; one that a client began apart, from none.
    """
    return [_predecessor(trajectory, number) for number in range(len(trajectory.turns))]


def _predecessor(trajectory: Trajectory, number: int) -> int:
    turn = trajectory.turns[number]
    if turn.parent >= 0:
        return turn.parent
    replies = [one for one in turn.context_messages if one.role is Role.ASSISTANT]
    if replies:
        return _latest(trajectory, number, replies)
    return -1 if any(turn.info.get(name, 0.0) > 0 for name in APART) else number - 1


def _latest(trajectory: Trajectory, number: int, replies: Sequence[Message]) -> int:
    """Returns the latest turn before `number` that gave the last of some replies; -1 where none did."""
    for before in reversed(range(number)):
        if same_reply(trajectory.turns[before].message or Message(Role.ASSISTANT), replies[-1]):
            return before
    return -1
