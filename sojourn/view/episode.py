"""Prepares the turns of an episode for the templates of the episode page, the re-run page and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from sojourn.call_text import call_text
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.record.metrics import Line
from sojourn.terminal.clean import one_line
from sojourn.terminal.considered import considered_lines, worth
from sojourn.terminal.episode import SeatRecord, TurnRecord, seats, turn_facts, turns_in_order
from sojourn.types import Message
from sojourn.view.branches import branch_svg
from sojourn.view.images import Image, click_position
from sojourn.view.notes import NotesView, notes_view
from sojourn.view.tokens import Token, Tokens, prompt_tokens, sampled_tokens

MAX_CHARACTERS = 6_000  # of a text that are shown on the page itself


@dataclass(frozen=True)
class ClippedText:
    """The beginning of a text. `omitted` characters are left out; `full_text` is the address of the whole message."""

    text: str
    omitted: int
    full_text: str


@dataclass(frozen=True)
class MessageView:
    """A message whose texts are clipped and whose images are resolved."""

    role: str
    text: ClippedText
    thought: ClippedText | None
    calls: Sequence[ClippedText]
    answers: str | None
    images: Sequence[Image]


@dataclass(frozen=True)
class TurnView:
    """One turn as a template shows it. `number` counts the turns of its seat from 1."""

    seat: str
    number: int
    trained: bool
    starts: str  # "a new context", "a branch of turn 3", or empty
    observed: Sequence[MessageView]
    message: MessageView | None
    reward: float | None
    advantage: float | None
    facts: Sequence[str]
    tokens: Tokens | None
    prompt: Sequence[Token] | None
    anchor: str  # "SEAT.TURN", which names the turn in addresses
    click: tuple[float, float] | None  # pixels at which its action pointed
    considered: Sequence[ConsideredView]
    notes: NotesView | None


class ConsideredView(NamedTuple):
    """An action that a search tried before a turn, `depth` actions after the turn's own."""

    depth: int
    text: str
    worth: str
    taken: bool


class SeatEnd(NamedTuple):
    """A seat with its score, and a drawing of its branches (empty if it has none)."""

    seat: SeatRecord
    branches: Markup


@dataclass(frozen=True)
class EpisodeView:
    """The options with which an episode is shown."""

    version: int | None  # of the weights after the episode's training step, for the lag
    full_text: Callable[[int, int, int], str]  # address of a message by seat, turn and its number in the turn
    image: Callable[[str], Image]  # by digest
    colouring: str = ""  # the number that colours the tokens; empty: tokens are not shown
    colour_max: float = 0.0  # the absolute value that gets the strongest colour
    prompt_of: str = ""  # the anchor of the turn whose prompt is shown
    vocabulary: Vocabulary | None = None

    def turns(self, record: Record) -> Iterator[TurnView]:
        """Yields the turns of all seats in the order of play."""
        seat_numbers = {id(trajectory): at for at, trajectory in enumerate(record.episode.trajectories)}
        for played in turns_in_order(record):
            yield self._turn(played, seat_numbers[id(played.seat.trajectory)])

    def _turn(self, played: TurnRecord, seat: int) -> TurnView:
        turn, score, credit = played.turn, played.seat.score, played.seat.credit
        advantages = None if credit is None else credit.tokens[played.turn_index]
        anchor = f"{seat}.{played.turn_index}"
        return TurnView(
            seat=played.seat.name,
            number=played.turn_index + 1,
            trained=played.seat.trajectory.trainable,
            starts=context_note(turn.parent, played.turn_index),
            observed=[self.message(message, seat, played.turn_index, at) for at, message in enumerate(turn.observed)],
            message=None if turn.message is None else self.message(turn.message, seat, played.turn_index, -1),
            reward=None if score is None else float(score.turns[played.turn_index]),
            advantage=float(advantages.mean()) if advantages is not None and len(advantages) else None,
            facts=[fact for fact in turn_facts(played, self.version) if not fact.startswith(("reward ", "advantage "))],
            tokens=self._tokens(played) if self.colouring else None,
            prompt=prompt_tokens(played, self.vocabulary) if self.prompt_of == anchor else None,
            anchor=anchor,
            click=click_position(turn.message),
            considered=[
                ConsideredView(line.depth, one_line(line.considered.text, 200), worth(line.considered), line.taken)
                for line in considered_lines(turn)
            ],
            notes=notes_view(played.seat.trajectory, played.turn_index),
        )

    def _tokens(self, played: TurnRecord) -> Tokens:
        return sampled_tokens(played, self.colouring, self.colour_max, self.vocabulary, self.version)

    def message(self, message: Message, seat: int, turn: int, at: int) -> MessageView:
        """Returns the view of one message: the `at`-th that was observed in a turn, or for -1 the turn's own."""
        full_text = self.full_text(seat, turn, at + 1)
        return MessageView(
            role=message.role.value,
            text=_clipped(message.text, full_text),
            thought=_clipped(message.thought, full_text) if message.thought else None,
            calls=[_clipped(call_text(call), full_text) for call in message.calls],
            answers=message.answers,
            images=[self.image(digest) for digest in message.images],
        )


def seat_ends(record: Record, linked: bool = False) -> list[SeatEnd]:
    """Returns the end of each seat. If `linked`, the turns in the drawings link to the turns of the page."""
    return [SeatEnd(seat, branch_svg(seat.trajectory, at, linked)) for at, seat in enumerate(seats(record))]


def _clipped(text: str, full_text: str) -> ClippedText:
    return ClippedText(text[:MAX_CHARACTERS], max(len(text) - MAX_CHARACTERS, 0), full_text)


def context_note(parent: int, number: int) -> str:
    """Says whether a turn starts a new context or a branch; returns an empty text if it continues the turn before."""
    return "" if parent == number - 1 else "a new context" if parent < 0 else f"a branch of turn {parent + 1}"


def trained_version(lines: Sequence[Line], entry: EpisodeRow) -> int | None:
    """Returns the version of the weights after the episode's training step, None if the metrics do not say."""
    versions = (line.values.get("version") for line in lines if (line.stage, line.step) == (entry.stage, entry.step))
    version = next(versions, None)
    return None if version is None else int(version)
