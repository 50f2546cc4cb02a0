"""Keeps the request behind a turn, as notes of the turn: who asked how, why a new context began, and the body.

Clients send the whole conversation with each request. So a body is kept as what is new in it since the body of an
earlier turn: the note `SHARES` has the number of that turn, and how many characters at the beginning and at the end are
the same there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sojourn.gateway.placement import Cause, Difference
from sojourn.gateway.requests import Received
from sojourn.record.note_names import API, BEFORE, BODY, CAUSE, CLIENT, NOW, PLACE, SHARES, STREAMED
from sojourn.types import Turn

LONGEST_CLIENT = 200  # characters of a client's name
LONGEST_BODY = 1 << 18  # characters of a body
READ_BODY = 2 * LONGEST_BODY  # that are looked through for what is private: where these are cut, nothing is kept
LEAST_SHARED = 200  # characters; a body that has fewer in common with the earlier one is kept whole
MEANINGS = {
    Cause.REPEATED: "another reply to the same conversation was asked for",
    Cause.TOOLS: "the conversation goes on with other tools",
    Cause.REWRITTEN: "what came before our last reply was changed",
    Cause.COMPACTED: "the conversation begins as an earlier one, without all or the first of our replies",
    Cause.SIDE: "a conversation of its own",
}


class Shared(NamedTuple):
    """Says which characters of a body are those of turn `turn`: the `first`, and the `last`."""

    turn: int
    first: int
    last: int


def cut(body: str, most: int = LONGEST_BODY) -> str:
    """Returns a body, without its middle where it has more than `most` characters."""
    if len(body) <= most:
        return body
    half = most // 2
    return f"{body[:half]}[{len(body) - 2 * half} characters are not kept]{body[-half:]}"


def of_context(cause: Cause, differs: Difference | None) -> dict[str, str]:
    """Returns the notes of a turn that begins a new context: why, and where the history that was sent differs."""
    if cause is Cause.FIRST:
        return {}
    notes = {CAUSE: f"{cause}: {MEANINGS[cause]}"}
    if differs is not None:
        notes[PLACE] = differs.place
        notes |= {BEFORE: differs.before, NOW: differs.now} if differs.before or differs.now else {}
    return notes


def of_request(received: Received, streamed: bool, earlier: str, turn: int) -> dict[str, str]:
    """Returns the notes of a request, of whose body is kept what is new since the body `earlier` of turn `turn`."""
    body = received.body
    notes = {API: received.api, CLIENT: received.client, STREAMED: "yes" if streamed else "no"}
    first = _same(earlier, body, min(len(earlier), len(body)))
    last = _same(earlier[::-1], body[::-1], min(len(earlier), len(body)) - first)
    if first + last < LEAST_SHARED:
        first = last = 0
    else:
        notes[SHARES] = " ".join(map(str, Shared(turn, first, last)))
    return notes | {BODY: body[first : len(body) - last]}


def shared(turn: Turn) -> Shared | None:
    """Returns which part of a turn's body is kept with another turn, None where all of it is here."""
    numbers = turn.notes.get(SHARES, "").split()
    if len(numbers) != 3 or not all(number.isdecimal() and len(number) < 10 for number in numbers):
        return None
    return Shared(*map(int, numbers))


def body_of(turns: Sequence[Turn], number: int) -> str | None:
    """Returns the whole body of the request behind a turn, None where none is kept. What a turn has that is not among
    these is named in its place."""
    parts: list[tuple[str, Shared | None]] = []
    at = number
    while BODY in turns[at].notes:
        same = shared(turns[at])
        parts.append((turns[at].notes[BODY], same))
        if same is None or not same.turn < at:
            break
        at = same.turn
    whole = ""
    for text, same in reversed(parts):
        whole = text if same is None else _joined(whole, text, same)
    return whole if parts else None


def _joined(earlier: str, new: str, same: Shared) -> str:
    if len(earlier) < same.first + same.last:
        return f"[{same.first} characters as in turn {same.turn + 1}]{new}[{same.last} characters as there]"
    return f"{earlier[: same.first]}{new}{earlier[len(earlier) - same.last :] if same.last else ''}"


def _same(one: str, other: str, most: int) -> int:
    """Returns how many characters two texts have in common at their beginning, `most` of them at most."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
