"""Shows the notes of a turn in the terminal: who asked for it how, why a new context began, and what else is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.text import Text

from sojourn.record.note_names import API, BEFORE, BODY, CAUSE, CLIENT, NOW, PLACE, SHARES, STREAMED
from sojourn.terminal.clean import clean, one_line

SHOWN = 300  # characters of a note
OF_REQUEST = (API, CLIENT, STREAMED, CAUSE, PLACE, BEFORE, NOW, BODY, SHARES)  # notes that have their own line or none


def notes_text(notes: Mapping[str, str], limit: int | None) -> Text | None:
    """Returns the notes of a turn, without the body of its request; None where there is nothing to show. Texts are
    shortened where there is a `limit`."""
    lines = [*_request(notes), *_context(notes, limit)]
    lines += [f"{one_line(name, 40)}: {_end(text, limit)}" for name, text in notes.items() if name not in OF_REQUEST]
    return Text("\n".join(lines), "dim") if lines else None


def _request(notes: Mapping[str, str]) -> Iterator[str]:
    if API in notes:
        client = one_line(notes.get(CLIENT, ""), 80) or "a client that does not say its name"
        yield f"asked over {one_line(notes[API], 40)} by {client}" + (", streamed" * (notes.get(STREAMED) == "yes"))


def _context(notes: Mapping[str, str], limit: int | None) -> Iterator[str]:
    """Yields why a new context began, and where the history that the client sent differs from the recorded one."""
    if CAUSE not in notes:
        return
    yield f"new context, {one_line(notes[CAUSE], 200)}"
    if PLACE in notes:
        yield f"the history that was sent differs at {one_line(notes[PLACE], 200)}"
    if notes.get(BEFORE) or notes.get(NOW):
        yield f"  as recorded: {_begin(notes.get(BEFORE, ''), limit)}"
        yield f"  as sent: {_begin(notes.get(NOW, ''), limit)}"


def _begin(text: str, limit: int | None) -> str:
    if not text:
        return "nothing, it ended here"
    return one_line(text, SHOWN) if limit is not None else clean(text, None)


def _end(text: str, limit: int | None) -> str:
    """Returns a note, of whose beginning what is too long is left out: the end of an output says most."""
    text = text.strip()
    if limit is None or len(text) <= SHOWN:
        return clean(text, None)
    return f"[{len(text) - SHOWN} characters] {clean(text[-SHOWN:], None)}"
