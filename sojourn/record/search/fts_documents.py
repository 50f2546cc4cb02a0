"""Splits the text of an episode into passages for full-text search, each text once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sojourn.call_text import call_text
from sojourn.types import Episode, Message, Role

# the parts of an episode's text that can be searched, with the column that the index on disk has for each
COLUMN_OF_PART = {"message": "said", "observed": "shown", "system": "brief", "error": "error"}
PARTS = tuple(COLUMN_OF_PART)
MAX_CHARACTERS = 1 << 18  # of one passage, beyond which nothing is indexed
BORDER = "\ue000"  # between passages: a word for SQLite that no text or query has, so no phrase spans two passages
MARKS = ("\x01", "\x02")  # SQLite puts them before and after a hit
_REPLACED = re.compile("[\x00-\x02\ud800-\udfff\ue000]")


class Passage(NamedTuple):
    """One text with its place: `part` is one of `PARTS`; seat and turn are -1 for the error of an episode.

    "message" are the texts, thoughts and tool calls of the agents, "observed" the observations, "system" the system
    messages, and "error" is the infrastructure failure of an episode, or of closing its world.
    """

    seat: int
    turn: int
    part: str
    text: str


def passages(episode: Episode) -> Iterator[Passage]:
    """Yields the passages in order of play, without those that a later context repeats."""
    seen = set[str]()
    for passage in _repeated_passages(episode):
        if passage.text and passage.text not in seen:
            seen.add(passage.text)
            yield passage._replace(text=clean(passage.text[:MAX_CHARACTERS]))


def documents(episode: Episode) -> tuple[str, ...]:
    """Returns what the index stores of an episode: one text for each of `PARTS`."""
    texts: dict[str, list[str]] = {part: [] for part in PARTS}
    for passage in passages(episode):
        texts[passage.part].append(passage.text)
    return tuple(f"\n{BORDER}\n".join(texts[part]) for part in PARTS)


def clean(text: str) -> str:
    """Replaces the characters that SQLite cannot store, or that have a meaning here."""
    return _REPLACED.sub("\ufffd", text)


def _repeated_passages(episode: Episode) -> Iterator[Passage]:
    for seat, trajectory in enumerate(episode.trajectories):
        for number, turn in enumerate(trajectory.turns):
            for message in turn.observed:
                yield Passage(seat, number, "system" if message.role is Role.SYSTEM else "observed", _text(message))
            if turn.message is not None:
                yield Passage(seat, number, "message", _text(turn.message))
    for failure in filter(None, (episode.error, episode.close_error)):
        yield Passage(-1, -1, "error", failure)


def _text(message: Message) -> str:
    calls = (call_text(call, str) for call in message.calls)  # repr would join an escape to the word after it
    return "\n".join(text for text in (message.thought, message.text, *calls) if text)
