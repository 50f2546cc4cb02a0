"""One episode: its turns as a person reads them, and at a toggle every token that was sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request

from sojourn.record.entry import Entry
from sojourn.record.metrics import Line
from sojourn.record.store import EpisodeStore
from sojourn.record.vocabulary import Vocabulary
from sojourn.record.vocabulary import read as read_vocabulary
from sojourn.terminal.episode import Move, Seat, facts, moves, seats, tree
from sojourn.terminal.find import found, group
from sojourn.types import Message
from sojourn.view.page import Page, library, render
from sojourn.view.pictures import Picture, picture, pointed
from sojourn.view.tokens import COLOURINGS, Token, Tokens, prompt_tokens, tokens_of
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
    thought: str
    calls: Sequence[str]
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


def index(request: Request) -> Page:
    key, name = request.path_params["run"], request.path_params["episode"]
    shown = library(request)
    path = shown.path(key)
    with EpisodeStore(path) as store:
        entry = found(store, name)
        record = store.read(entry)
        siblings = group(store, entry.stage, entry.step, entry.place)
    colouring = request.query_params.get("tokens", "")
    colouring = colouring if colouring in COLOURINGS else ""
    asked = request.query_params.get("prompt", "")
    version = _version(shown.lines(path), entry)
    ends = [(seat, list(tree(seat.trajectory)) if _branches(seat) else []) for seat in seats(record)]
    view = _View(key, path, name, version, colouring, asked, read_vocabulary(path) if colouring or asked else None)
    at = next((k for k, sibling in enumerate(siblings) if sibling.id == entry.id), 0)
    return render(
        request, "episode.html", run=key, entry=entry, episode=record.episode, turns=list(view.turns(moves(record))),
        seats=ends, colouring=colouring, asked=asked,
        colourings=COLOURINGS, spoken=view.vocabulary is not None or not (colouring or asked), siblings=siblings,
        before=siblings[at - 1] if at else None, after=siblings[at + 1] if at + 1 < len(siblings) else None,
    )  # fmt: skip


@dataclass(frozen=True)
class _View:
    run: str
    path: Path
    episode: str
    version: int | None
    colouring: str
    asked: str
    vocabulary: Vocabulary | None

    def turns(self, played: Sequence[Move]) -> Iterator[TurnView]:
        order: dict[int, int] = {}
        for move in played:
            seat = order.setdefault(id(move.seat), len(order))
            yield self._turn(move, seat)

    def _turn(self, move: Move, seat: int) -> TurnView:
        turn, score, credit = move.turn, move.seat.score, move.seat.credit
        advantages = None if credit is None else credit.tokens[move.number]
        place = f"{seat}.{move.number}"
        return TurnView(
            seat=move.seat.name,
            number=move.number + 1,
            trained=move.seat.trajectory.trainable,
            opens=_opens(turn.parent, move.number),
            shown=[self._spoken(message, seat, move.number, at) for at, message in enumerate(turn.shown)],
            said=None if turn.said is None else self._spoken(turn.said, seat, move.number, -1),
            reward=None if score is None else float(score.turns[move.number]),
            advantage=float(advantages.mean()) if advantages is not None and len(advantages) else None,
            facts=[told for told in facts(move, self.version) if not told.startswith(("reward ", "advantage "))],
            tokens=tokens_of(move, self.colouring, self.vocabulary, self.version) if self.colouring else None,
            prompt=prompt_tokens(move, self.vocabulary) if self.asked == place and self.vocabulary else None,
            place=place,
            point=pointed(turn.said),
        )

    def _spoken(self, message: Message, seat: int, turn: int, at: int) -> Spoken:
        whole = f"/runs/{self.run}/text/{seat}/{turn}/{at + 1}/{self.episode}"
        return Spoken(
            role=message.role.value,
            text=Clipped(message.text[:LONGEST], max(len(message.text) - LONGEST, 0), whole),
            thought=message.thought,
            calls=[call_text(call)[:LONGEST] for call in message.calls],
            answers=message.answers,
            pictures=[picture(self.path, self.run, digest) for digest in message.images],
        )


def _opens(parent: int, number: int) -> str:
    return "" if parent == number - 1 else "a new context" if parent < 0 else f"a branch of turn {parent + 1}"


def _branches(seat: Seat) -> bool:
    return any(turn.parent != at - 1 for at, turn in enumerate(seat.trajectory.turns))


def _version(lines: Sequence[Line], entry: Entry) -> int | None:
    """Of the weights that the step made."""
    found = next(
        (line.values.get("version") for line in lines if (line.stage, line.step) == (entry.stage, entry.step)), None
    )
    return None if found is None else int(found)
