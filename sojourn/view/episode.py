"""The turns of an episode, ready to be shown: by the page of the viewer, and by the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.record.metrics import Line
from sojourn.terminal.episode import Move, Seat, facts, moves, seats
from sojourn.types import Message
from sojourn.view.branches import drawing
from sojourn.view.pictures import Picture, pointed
from sojourn.view.tokens import Token, Tokens, prompt_tokens, tokens_of
from sojourn.view.words import call_text

LONGEST = 6_000  # characters of a text that are shown at once


@dataclass(frozen=True)
class Clipped:
    """A text, of which `left` characters are left out; the whole is at `whole`."""

    text: str
    left: int
    whole: str


@dataclass(frozen=True)
class Spoken:
    """A message, ready to be shown."""

    role: str
    text: Clipped
    thought: Clipped | None
    calls: Sequence[Clipped]
    answers: str | None
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class TurnView:
    """One turn; `number` counts the seat's from 1, `opens` says what begins with it: a context, a branch, nothing."""

    seat: str
    number: int
    trained: bool
    opens: str
    shown: Sequence[Spoken]
    said: Spoken | None
    reward: float | None
    advantage: float | None
    facts: Sequence[str]
    tokens: Tokens | None
    prompt: Sequence[Token] | None
    place: str  # how the address names it, to ask for its prompt
    point: tuple[float, float] | None  # where its action pointed to


class End(NamedTuple):
    """How a seat ended, and a drawing of its branches; empty where it has none."""

    seat: Seat
    branches: Markup


@dataclass(frozen=True)
class View:
    """How an episode is shown. `version` is of the weights that its step made; `colouring` names what colours tokens,
    if they are shown, and `asked` the turn whose prompt is. `whole` gives the address of a message that is too long (by
    seat, turn and place), `pictured` an image."""

    version: int | None
    whole: Callable[[int, int, int], str]
    pictured: Callable[[str], Picture]
    colouring: str = ""
    full: float = 0.0  # the number that has the full colour
    asked: str = ""
    vocabulary: Vocabulary | None = None

    def turns(self, record: Record) -> Iterator[TurnView]:
        places = {id(trajectory): at for at, trajectory in enumerate(record.episode.trajectories)}
        for move in moves(record):
            yield self._turn(move, places[id(move.seat.trajectory)])

    def _turn(self, move: Move, seat: int) -> TurnView:
        turn, score, credit = move.turn, move.seat.score, move.seat.credit
        advantages = None if credit is None else credit.tokens[move.number]
        place = f"{seat}.{move.number}"
        return TurnView(
            seat=move.seat.name,
            number=move.number + 1,
            trained=move.seat.trajectory.trainable,
            opens=opens(turn.parent, move.number),
            shown=[self.spoken(message, seat, move.number, at) for at, message in enumerate(turn.observed)],
            said=None if turn.message is None else self.spoken(turn.message, seat, move.number, -1),
            reward=None if score is None else float(score.turns[move.number]),
            advantage=float(advantages.mean()) if advantages is not None and len(advantages) else None,
            facts=[told for told in facts(move, self.version) if not told.startswith(("reward ", "advantage "))],
            tokens=self._tokens(move) if self.colouring else None,
            prompt=prompt_tokens(move, self.vocabulary) if self.asked == place else None,
            place=place,
            point=pointed(turn.message),
        )

    def _tokens(self, move: Move) -> Tokens:
        return tokens_of(move, self.colouring, self.full, self.vocabulary, self.version)

    def spoken(self, message: Message, seat: int, turn: int, at: int) -> Spoken:
        whole = self.whole(seat, turn, at + 1)
        return Spoken(
            role=message.role.value,
            text=_clipped(message.text, whole),
            thought=_clipped(message.thought, whole) if message.thought else None,
            calls=[_clipped(call_text(call), whole) for call in message.calls],
            answers=message.answers,
            pictures=[self.pictured(digest) for digest in message.images],
        )


def ends(record: Record, linked: bool = False) -> list[End]:
    """All seats at their end; the turns of their drawings lead to those of the page where they are `linked`."""
    return [End(seat, drawing(seat.trajectory, at, linked)) for at, seat in enumerate(seats(record))]


def _clipped(text: str, whole: str) -> Clipped:
    return Clipped(text[:LONGEST], max(len(text) - LONGEST, 0), whole)


def opens(parent: int, number: int) -> str:
    """What begins with a turn, in words."""
    return "" if parent == number - 1 else "a new context" if parent < 0 else f"a branch of turn {parent + 1}"


def version_of(lines: Sequence[Line], entry: EpisodeRow) -> int | None:
    """Of the weights that the step made."""
    found = next(
        (line.values.get("version") for line in lines if (line.stage, line.step) == (entry.stage, entry.step)), None
    )
    return None if found is None else int(found)
