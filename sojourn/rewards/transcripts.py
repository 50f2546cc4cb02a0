"""Writes a trajectory as text for a judge: all of its messages, the last, or those that the agent named.

An agent may write whatever it likes, such as the end of its own transcript, a verdict, or an answer of the world. So
every line that says who speaks, and where a transcript ends, carries a code that follows from all that is shown, and
that nothing shown can therefore hold.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sojourn.call_text import call_text
from sojourn.types import Message, Role, Trajectory, Turn

NAMED = re.compile(r"evidences?\W{0,20}((?:turns?\W{0,3})?\d[\d\s,]*)", re.IGNORECASE)
SHORTEST = 40  # characters of a message that are shown in any case
SPEAKERS = {Role.SYSTEM: "instructions", Role.USER: "world", Role.TOOL: "tool", Role.ASSISTANT: "agent"}


class Said(NamedTuple):
    """A message of a trajectory, as a judge is shown it; `turn` counts from 1."""

    turn: int
    speaker: str
    text: str


@dataclass(frozen=True)
class Evidence:
    """Says which turns of a trajectory a judge sees: the last `turns` (0: all) or, with `named`, the last one and up to
    so many that the agent chose itself: the numbers, from 1, that follow the word "evidence" in its last message. What
    the world said first, its task, is always shown. `thoughts` says whether the agent's reasoning is. With `alone`, of
    the chosen turns, however many they are, only what they observed is shown, and of the last turn only what the agent
    wrote."""

    turns: int = 0
    named: int = 0
    thoughts: bool = False
    alone: bool = False

    def of(self, trajectory: Trajectory) -> tuple[Said, ...]:
        """Returns what is shown of a trajectory."""
        said: list[Said] = []
        if self.alone:
            for number in sorted({0, *chosen(trajectory).turns}):
                said += observed(trajectory.turns[number], number + 1)
            return (*said, *acted(trajectory.turns[-1], len(trajectory.turns), thoughts=self.thoughts))
        shown = self._shown(trajectory)
        if 0 not in shown:
            said += observed(trajectory.turns[0], 1)
        for number in shown:
            turn = trajectory.turns[number]
            said += [*observed(turn, number + 1), *acted(turn, number + 1, thoughts=self.thoughts)]
        return (*said, Said(len(trajectory.turns), "end of the play", str(trajectory.ending)))

    def _shown(self, trajectory: Trajectory) -> list[int]:
        """Returns the numbers of the turns that are shown, from 0."""
        count = len(trajectory.turns)
        if not self.named:
            return [*range(max(0, count - self.turns) if self.turns else 0, count)]
        return sorted({*chosen(trajectory).turns[: self.named], count - 1})


class Chosen(NamedTuple):
    """The turns, from 0, that an agent chose as evidence in its last message, in its order, and how many of the numbers
    that it gave are of no turn."""

    turns: tuple[int, ...]
    unknown: int


def chosen(trajectory: Trajectory) -> Chosen:
    """Returns what a trajectory's last message names as evidence."""
    named = dict.fromkeys(_named(trajectory.turns[-1]))
    turns = tuple(number for number in named if 0 <= number < len(trajectory.turns))
    return Chosen(turns, len(named) - len(turns))


def code_of(transcripts: Iterable[Sequence[Said]], *others: str) -> str:
    """Returns a code that follows from all that is shown, so that none of it can hold the code."""
    content = repr(([list(map(tuple, said)) for said in transcripts], others))
    return hashlib.sha256(content.encode(errors="backslashreplace")).hexdigest()[:16]


def written(transcript: Sequence[Said], code: str, most: int, name: str = "transcript") -> str:
    """Returns a transcript as a judge reads it. Where it has more than `most` characters, the longest messages lose
    those in their middle, so that none hides the others."""
    limit = _limit([len(one.text) for one in transcript], most)
    lines = [f"[{code}] {name} begins"]
    for one in _kept(transcript, most // SHORTEST):
        lines += [f"[{code}] turn {one.turn}, {one.speaker}:", _shortened(one.text, limit)]
    return "\n".join([*lines, f"[{code}] {name} ends"])


def fenced(text: str, code: str, name: str) -> str:
    """Returns another text that is shown to a judge as data."""
    return f"[{code}] {name} begins\n{text}\n[{code}] {name} ends"


def observed(turn: Turn, number: int) -> Iterator[Said]:
    """Yields what a turn observed; `number` is the turn's, from 1."""
    for message in turn.observed:
        yield Said(number, SPEAKERS[message.role], message.text + _images(message))


def acted(turn: Turn, number: int, *, thoughts: bool = False) -> Iterator[Said]:
    """Yields what the agent wrote in a turn, with its reasoning if `thoughts` says so."""
    message = turn.message
    if message is None:
        yield Said(number, "agent", "(what it wrote could not be read)")
        return
    if thoughts and message.thought:
        yield Said(number, "agent, reasoning", message.thought)
    if message.text or not message.calls:
        yield Said(number, "agent", message.text)
    yield from (Said(number, "agent, call", call_text(call)) for call in message.calls)


def _images(message: Message) -> str:
    count = len(message.images)
    return f" [{count} image{'s' * (count > 1)}]" if count else ""


def _named(turn: Turn) -> list[int]:
    """Returns the turns, from 0, that a message names as evidence."""
    if turn.message is None:
        return []
    found = NAMED.findall("\n".join([turn.message.text, *map(call_text, turn.message.calls)]))
    return [int(number) - 1 for number in re.findall(r"\d{1,6}", found[-1])] if found else []


def _limit(lengths: Sequence[int], most: int) -> int:
    """Returns how many characters of each text may be shown so that all together are at most `most`."""
    left = most
    for number, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - number)
        if length > share:
            return max(share, SHORTEST)
        left -= length
    return max([*lengths, SHORTEST])


def _kept(transcript: Sequence[Said], most: int) -> Iterator[Said]:
    """Yields the first and the last messages of a transcript that has more than `most`."""
    half = max(1, most // 2)
    if len(transcript) <= 2 * half:
        yield from transcript
        return
    yield from transcript[:half]
    yield Said(transcript[half].turn, "(messages left out)", str(len(transcript) - 2 * half))
    yield from transcript[-half:]


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"
