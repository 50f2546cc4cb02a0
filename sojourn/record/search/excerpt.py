"""Finds the words of a query in an episode: the short piece of its text that has most of them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from sojourn.record.episodes.index import TOKENS
from sojourn.record.search.fts_documents import COLUMN_OF_PART, MARKS, Passage, passages
from sojourn.types import Episode

EXCERPT_WORDS = 24  # how many words an excerpt has
MAX_CHARACTERS = 120  # of one segment: a word may be megabytes long
PIECE, OVERLAP = 4000, 400  # characters of a piece that is searched at once
GAP = "…"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SPACE = re.compile(r"\s+")
_MARKED = re.compile(f"([{''.join(MARKS)}])")


class Segment(NamedTuple):
    text: str
    hit: bool


class Excerpt(NamedTuple):
    """One line of a passage in segments; those with `hit` are words of the query.

    Control characters are replaced. It is not escaped for HTML.
    """

    seat: int
    turn: int
    part: str
    segments: tuple[Segment, ...]


def excerpts(episodes: Sequence[Episode | None], expression: str) -> list[Excerpt | None]:
    """Returns the best excerpt of each episode, None if it has none.

    SQLite finds it as it found the episode, so that both agree on what a word is.
    """
    with closing(sqlite3.connect(":memory:")) as database:
        columns = ", ".join(COLUMN_OF_PART.values())
        database.execute(f"CREATE VIRTUAL TABLE near USING fts5({columns}, tokenize='{TOKENS}')")
        pieces: list[Passage] = []
        ends: list[int] = []
        for episode in episodes:
            pieces += _pieces(episode) if episode is not None else ()
            ends.append(len(pieces))
        for part, column in COLUMN_OF_PART.items():
            database.executemany(
                f"INSERT INTO near (rowid, {column}) VALUES (?, ?)",
                [(row, passage.text) for row, passage in enumerate(pieces) if passage.part == part],
            )
        begins = [0, *ends]
        return [_best(database, pieces, range(*span), expression) for span in zip(begins, ends, strict=False)]


def _pieces(episode: Episode) -> Iterator[Passage]:
    """Cuts passages into pieces that overlap, since SQLite's time is quadratic in the hits of one text."""
    for passage in passages(episode):
        for start in range(0, max(1, len(passage.text) - OVERLAP), PIECE):
            yield passage._replace(text=passage.text[start : start + PIECE + OVERLAP])


def _best(database: sqlite3.Connection, pieces: list[Passage], rows: range, expression: str) -> Excerpt | None:
    best = database.execute(
        "SELECT rowid, snippet(near, -1, ?, ?, ?, ?) FROM near WHERE near MATCH ? AND rowid >= ? AND rowid < ? "
        "ORDER BY rank, rowid LIMIT 1",
        (*MARKS, GAP, EXCERPT_WORDS, expression, rows.start, rows.stop),
    ).fetchone()
    if best is None:
        return None
    seat, turn, part, _ = pieces[best[0]]
    return Excerpt(seat, turn, part, tuple(_segments(best[1])))


def _segments(marked: str) -> Iterator[Segment]:
    hit, pieces = False, [piece for piece in _MARKED.split(marked) if piece]
    for number, piece in enumerate(pieces):
        if piece in MARKS:
            hit = piece == MARKS[0]
        else:
            line = _CONTROL.sub("\ufffd", _SPACE.sub(" ", piece))
            yield Segment(_clipped(line, head=hit or number > 0, tail=not hit and number < len(pieces) - 1), hit)


def _clipped(text: str, *, head: bool, tail: bool) -> str:
    """Shortens a text that is too long to its head, its tail or both."""
    if len(text) <= MAX_CHARACTERS:
        return text
    if head and tail:
        return f"{text[: MAX_CHARACTERS // 2]}{GAP}{text[-MAX_CHARACTERS // 2 :]}"
    return f"{GAP}{text[-MAX_CHARACTERS:]}" if tail else f"{text[:MAX_CHARACTERS]}{GAP}"
