"""Prepares the notes of a turn for pages: the request behind it, where history was rewritten, and what else an agent
keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sojourn.gateway.request_notes import body_of, shared
from sojourn.record.note_names import API, BEFORE, BODY, CAUSE, NOW, PLACE, SHARES
from sojourn.types import Trajectory, Turn
from sojourn.view.page import clip

SHORT = 100  # characters of a note that is part of a line
MAX_CHARACTERS = 6_000  # of a note that are shown on the page itself
MAX_SIDE = 1_000  # of a side of a difference
WINDOW = "window_"  # begins the info of turns that a gateway recorded
OF_CONTEXT = (CAUSE, PLACE, BEFORE, NOW, BODY, SHARES)  # notes that have their own place


class Fold(NamedTuple):
    """A long note, of which `omitted` characters are left out."""

    title: str
    text: str
    omitted: int = 0


class Rewritten(NamedTuple):
    """Why a turn began a new context, and how the history that was sent differs from the one that was recorded."""

    cause: str
    place: str
    before: str
    now: str


class NotesView(NamedTuple):
    """The notes of a turn: short ones as a line, long ones to be unfolded. `missing` says what is not recorded."""

    line: Sequence[str]
    rewritten: Rewritten | None
    folds: Sequence[Fold]
    missing: str = ""


def notes_view(trajectory: Trajectory, number: int) -> NotesView | None:
    """Returns the notes of a turn; None where there are none and none can be missed."""
    notes = trajectory.turns[number].notes
    missing = "" if API in notes else _missing(trajectory)
    if not notes and not missing:
        return None
    plain = {name: text for name, text in notes.items() if name not in OF_CONTEXT}
    short = {name: text for name, text in plain.items() if len(text) <= SHORT and "\n" not in text.strip()}
    folds = [_fold(name, text) for name, text in plain.items() if name not in short]
    rewritten = None
    if CAUSE in notes:
        rewritten = Rewritten(*(clip(notes.get(name, ""), MAX_SIDE) for name in (CAUSE, PLACE, BEFORE, NOW)))
    body = [_body(trajectory.turns[number])] if BODY in notes else []
    line = [f"{clip(name, SHORT)}: {text.strip() or 'not said'}" for name, text in short.items()]
    return NotesView(line, rewritten, [*body, *folds], missing)


def whole_notes(trajectory: Trajectory, number: int) -> str:
    """Returns all notes of a turn as one text, the whole body of its request included."""
    notes = {name: text for name, text in trajectory.turns[number].notes.items() if name not in (BODY, SHARES)}
    body = body_of(trajectory.turns, number)
    notes |= {} if body is None else {BODY: body}
    return "\n".join(f"{name}:{chr(10) if len(text) > SHORT else ' '}{text}" for name, text in notes.items()) + "\n"


def _missing(trajectory: Trajectory) -> str:
    if any(API in turn.notes for turn in trajectory.turns):
        return "nothing is recorded of the request behind this turn"
    if any(name.startswith(WINDOW) for turn in trajectory.turns for name in turn.info):
        return "an older Sojourn recorded nothing of the request behind this turn"
    return ""


def _body(turn: Turn) -> Fold:
    """Returns what is new in the body of a request, with a sentence for each part that an earlier turn has."""
    same, new = shared(turn), turn.notes[BODY]
    fold = _fold("the request's body", new)
    if same is None:
        return fold._replace(title=f"the request's body, {len(new):,} characters")
    title = f"the request's body, {same.first + len(new) + same.last:,} characters, {len(new):,} of them new"
    before = f"[{same.first:,} characters as in the request of turn {same.turn + 1}]" if same.first else ""
    after = f"[{same.last:,} characters as there]" if same.last and not fold.omitted else ""
    return Fold(title, f"{before}{fold.text}{after}", fold.omitted)


def _fold(name: str, text: str) -> Fold:
    return Fold(clip(name, SHORT), text[:MAX_CHARACTERS], max(len(text) - MAX_CHARACTERS, 0))
