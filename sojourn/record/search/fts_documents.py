"""The texts of an episode as search sees them: what was said and shown, passage by passage, each text once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sojourn.types import Episode, Message, Role

PARTS = ("said", "shown", "brief", "error")
LONGEST = 1 << 18  # characters of one passage that can be found
BORDER = "\ue000"  # SQLite takes it for a word, which no text or query has: no phrase runs on into the next passage
MARKS = ("\x01", "\x02")  # where SQLite says that a hit begins and ends
_UNFIT = re.compile("[\x00-\x02\ud800-\udfff\ue000]")


class Passage(NamedTuple):
    """One text, and where it is: `part` is one of `PARTS`; seat and turn are -1 for the error of an episode.

    "said" are the words, thoughts and calls of the seats; "shown" is what the world showed; "brief" are the system's
    standing messages; "error" is the failure of an episode.
    """

    seat: int
    turn: int
    part: str
    text: str


def passages(episode: Episode) -> Iterator[Passage]:
    """In order of play; what a later context shows once more, an agent's own words included, is left out."""
    seen = set[str]()
    for passage in _all(episode):
        if passage.text and passage.text not in seen:
            seen.add(passage.text)
            yield passage._replace(text=clean(passage.text[:LONGEST]))


def documents(episode: Episode) -> tuple[str, ...]:
    """What the index holds of an episode: one text for each of `PARTS`."""
    texts: dict[str, list[str]] = {part: [] for part in PARTS}
    for passage in passages(episode):
        texts[passage.part].append(passage.text)
    return tuple(f"\n{BORDER}\n".join(texts[part]) for part in PARTS)


def clean(text: str) -> str:
    """Without the characters that SQLite cannot hold, or that have a meaning here."""
    return _UNFIT.sub("\ufffd", text)


def _all(episode: Episode) -> Iterator[Passage]:
    for seat, trajectory in enumerate(episode.trajectories):
        for number, turn in enumerate(trajectory.turns):
            for message in turn.observed:
                yield Passage(seat, number, "brief" if message.role is Role.SYSTEM else "shown", _text(message))
            if turn.message is not None:
                yield Passage(seat, number, "said", _text(turn.message))
    if episode.error is not None:
        yield Passage(-1, -1, "error", episode.error)


def _text(message: Message) -> str:
    calls = (
        f"{call.name}({', '.join(f'{key}={value}' for key, value in call.arguments.items())})" for call in message.calls
    )
    return "\n".join(text for text in (message.thought, message.text, *calls) if text)
