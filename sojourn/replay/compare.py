"""Compares a turn of a replay with its record, and describes the first difference in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from sojourn.checks.env.play import difference, short
from sojourn.errors import SojournError
from sojourn.types import Message, Turn


class DiffersError(SojournError):
    """The first difference between a play and its record."""


class NotReplayableError(SojournError):
    """A record that cannot be replayed; the message says why."""


def compare_shown(where: str, was: Sequence[Message], now: Sequence[Message]) -> None:
    """Requires the same messages as in the record."""
    for recorded, new in zip(was, now, strict=False):
        if recorded != new:
            raise DiffersError(f"{where}: {_message_difference(recorded, new)}")
    if len(was) != len(now):
        odd = (now if len(now) > len(was) else was)[min(len(now), len(was)) :][0]
        verb = "shows too" if len(now) > len(was) else "does not show"
        raise DiffersError(f"{where}: the world {verb} {short(odd)}")


def compare_state(where: str, was: str | None, now: str | None) -> None:
    """Requires the same state, where the world has keys for it now and had them then."""
    if None not in (was, now) and was != now:
        raise DiffersError(f"{where}: {difference('the state', was, now)}")


def compare_rewards(where: str, was: Turn, now: Turn) -> None:
    """Requires the same reward, success and refusal."""
    if was.reward != now.reward:
        raise DiffersError(f"{where}: the reward is {now.reward:g}, but it was {was.reward:g}")
    for name in ("success", "malformed"):
        if was.info.get(name) != now.info.get(name):
            raise DiffersError(f"{where}: {name} is {_flag(now, name)}, but it was {_flag(was, name)}")


def _flag(turn: Turn, name: str) -> str:
    return f"{turn.info[name]:g}" if name in turn.info else "not said"


def _message_difference(was: Message, now: Message) -> str:
    if was.text != now.text:
        return difference("what is shown", was.text, now.text)
    for name in ("images", "role", "thought", "calls", "answers"):
        if getattr(was, name) != getattr(now, name):
            return difference(f"{name} of what is shown", getattr(was, name), getattr(now, name))
    raise AssertionError("unreachable: messages that differ do so in a field")
