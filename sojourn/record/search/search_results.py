"""Runs a query on an index: a page of rows in a stable order, their total number, and where the next page begins.

The words of a query become one FTS5 expression in which each is a quoted string. That expression and all other values
are bound parameters, so nothing that a user types is read as code.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sojourn.errors import QueryError
from sojourn.record.episodes.episode_row import COLUMNS, EpisodeRow, from_values
from sojourn.record.search.excerpt import Excerpt
from sojourn.record.search.fts_documents import COLUMN_OF_PART, clean
from sojourn.record.search.query import FRACTIONS, Failed, OneOf, Query, Range, Term, Words

MAX_COUNTED = 10_000  # rows that are counted
MAX_PAGE_ROWS = 1000  # rows of one page
COLUMN_OF_KEY = {"tokens": "sampled"}  # for keys whose column has another name
LABELS = ("tag", "tool")
_PLACE = re.compile(r"(\d{1,18})(?::(-?\d{1,20}(?:\.\d{1,20})?(?:e[-+]?\d{1,3})?|None))?", re.ASCII)


@dataclass(frozen=True)
class SearchResult:
    """One episode that matches; `excerpt` shows the words, None if the query has none or the record is unreadable."""

    entry: EpisodeRow
    excerpt: Excerpt | None = None


@dataclass(frozen=True)
class SearchResults:
    """A page of results.

    `total` counts those of all pages, up to `MAX_COUNTED` + 1. `next` is the `after` of the next page, or None.
    """

    rows: tuple[SearchResult, ...]
    total: int
    next: str | None

    @property
    def total_text(self) -> str:
        return f"{self.total:,}" if self.total <= MAX_COUNTED else f"more than {MAX_COUNTED:,}"


class Page(NamedTuple):
    rows: list[EpisodeRow]
    total: int
    next: str | None


class _Place(NamedTuple):
    """The position of a row in the order: its number, and its value in the sorted column (None without such)."""

    row: int
    value: float | None = None


class _Order(NamedTuple):
    """A sort order; rows without a value come last in both directions, and equal values are in order of recording."""

    column: str  # "" for the number of the row
    down: bool

    @classmethod
    def of(cls, query: Query) -> _Order:
        if query.sort in ("newest", "oldest"):
            return cls("", query.sort == "newest")
        name = query.sort.removeprefix("-")
        return cls(COLUMN_OF_KEY.get(name, name), query.sort.startswith("-"))

    def text(self, place: _Place) -> str:
        return f"{place.row}:{place.value!r}" if self.column else f"{place.row}"

    def read(self, text: str) -> _Place:
        """Parses what `text` returned for a place."""
        match = _PLACE.fullmatch(text)
        if not match or (match[2] is None) == bool(self.column):
            raise QueryError(
                f"'{text:.40}' is no position in these results: give the `next` of the page before, or none"
            )
        return _Place(int(match[1]), float(match[2]) if match[2] not in (None, "None") else None)

    def order_by(self, number: str) -> str:
        direction = "DESC" if self.down else "ASC"
        first = f"{self.column} {direction} NULLS LAST, " if self.column else ""
        return f"{first}{number} {direction}"

    def sort_key(self, place: _Place) -> tuple[bool, float, int]:
        """Returns a key that sorts places as `order_by` sorts rows."""
        sign = -1 if self.down else 1
        return place.value is None and bool(self.column), sign * (place.value or 0.0), sign * place.row

    def after(self, place: _Place, number: str) -> _Clause:
        """Returns the condition that a row comes after the place."""
        sign = "<" if self.down else ">"
        later = f"{number} {sign} ?"
        if not self.column:
            return _Clause(later, (place.row,))
        if place.value is None:
            return _Clause(f"{self.column} IS NULL AND {later}", (place.row,))
        text = f"{self.column} {sign} ? OR {self.column} IS NULL OR ({self.column} = ? AND {later})"
        return _Clause(text, (place.value, place.value, place.row))


class _Clause(NamedTuple):
    text: str
    values: tuple[Any, ...]


def page(
    database: sqlite3.Connection, query: Query, limit: int, after: str = "", max_counted: int = MAX_COUNTED
) -> Page:
    """Returns the rows of one page, all read in one transaction; `total` counts up to `max_counted` + 1."""
    if not 0 < limit <= MAX_PAGE_ROWS:
        raise QueryError(f"a page of {limit} rows: ask for 1 to {MAX_PAGE_ROWS}")
    order = _Order.of(query)
    begin = order.read(after) if after else None
    database.execute("BEGIN")
    try:
        places = _places(database, query, order, max_counted + 1, sort=not order.column)
        if len(places) <= max_counted:  # these are all, so no second query is needed
            later = [place for place in places if begin is None or order.sort_key(place) > order.sort_key(begin)]
            ahead = sorted(later, key=order.sort_key)
        elif begin is None and not order.column:
            ahead = places
        else:
            ahead = _places(database, query, order, limit + 1, begin)
        rows = _rows(database, [place.row for place in ahead[:limit]])
    finally:
        database.rollback()
    return Page(rows, len(places), order.text(ahead[limit - 1]) if len(ahead) > limit else None)


def expression(words: Iterable[Words], joined: str) -> str:
    """Returns an FTS5 expression in which every text is a quoted string, joined by the operator `joined`."""
    return f" {joined} ".join(f"{_column_filter(one.part)}{_string(one.text)}" for one in words)


def _column_filter(part: str) -> str:
    return f"{{{COLUMN_OF_PART[part]}}} : " if part else ""


def _places(
    database: sqlite3.Connection,
    query: Query,
    order: _Order,
    limit: int,
    begin: _Place | None = None,
    *,
    sort: bool = True,
) -> list[_Place]:
    source, number, clauses = _plan(query)
    clauses += [order.after(begin, number)] if begin else []
    select = f"SELECT {number}, {order.column or 'NULL'} FROM {source} WHERE {_all(clauses)}"
    sorting = f"ORDER BY {order.order_by(number)}" if sort else ""
    return [_Place(*row) for row in database.execute(f"{select} {sorting} LIMIT ?", (*_values(clauses), limit))]


def _rows(database: sqlite3.Connection, numbers: Sequence[int]) -> list[EpisodeRow]:
    marks = ", ".join("?" * len(numbers))
    rows = database.execute(f"SELECT row, {', '.join(COLUMNS)} FROM episodes WHERE row IN ({marks})", numbers)
    row_of = {row[0]: from_values(row[1:]) for row in rows}
    return [row_of[number] for number in numbers]


def _plan(query: Query) -> tuple[str, str, list[_Clause]]:
    """Returns the tables to select from, the column with the number of the row, and the conditions.

    Words go first: SQLite visits their rows in order and looks up each episode; without words it visits all episodes.
    """
    required = [term for term in query.terms if isinstance(term, Words) and not term.negated]
    excluded = [term for term in query.terms if isinstance(term, Words) and term.negated]
    clauses = [_clause(term) for term in query.terms if not isinstance(term, Words)]
    if not required:
        without = "episodes.row NOT IN (SELECT rowid FROM words WHERE words MATCH ?)"
        clauses += [_Clause(without, (expression(excluded, "OR"),))] if excluded else []
        return "episodes", "episodes.row", clauses
    text = f"({expression(required, 'AND')})" + (f" NOT ({expression(excluded, 'OR')})" if excluded else "")
    both = "words CROSS JOIN episodes ON episodes.row = words.rowid"
    return both, "words.rowid", [_Clause("words MATCH ?", (text,)), *clauses]


def _clause(term: Term) -> _Clause:
    """Returns the condition of a term. A condition that is NULL counts as false, so its negation holds."""
    text, values = _plain(term)
    return _Clause(f"({text}) IS NOT TRUE" if term.negated else f"({text})", values)


def _plain(term: Term) -> _Clause:
    match term:
        case Failed(value):
            return _Clause(f"episodes.error IS {'NOT ' if value else ''}NULL", ())
        case OneOf("success", values):
            return _Clause(
                " OR ".join("episodes.success > 0" if value == "yes" else "episodes.success = 0" for value in values),
                (),
            )
        case OneOf(key, values) if key in LABELS:
            marks = ", ".join("?" * len(values))
            return _Clause(
                f"episodes.row IN (SELECT row FROM labels WHERE kind = ? AND value IN ({marks}))", (key, *values)
            )
        case OneOf("origin", values):
            marks = ", ".join("?" * len(values))
            place = "(episodes.stage, episodes.step, episodes.place)"
            again = f"{place} IN (SELECT stage, of_step, of_place FROM reused WHERE origin IN ({marks}))"
            return _Clause(f"episodes.origin IN ({marks}) OR {again}", (*values, *values))
        case OneOf(key, values):
            # the plus keeps SQLite from using an index, after which it would have to sort all rows of a stage
            column = f"{'+' * (key == 'stage')}episodes.{key}"
            return _Clause(f"{column} IN ({', '.join('?' * len(values))})", values)
        case Range():
            return _within(term)
    raise TypeError(f"{term!r} is no term")


def _within(term: Range) -> _Clause:
    """Returns the condition of a range; a version matches if it is between the oldest and the newest."""
    column_above, column_below = (
        ("newest", "oldest") if term.key == "version" else (COLUMN_OF_KEY.get(term.key, term.key),) * 2
    )
    bounds = [(column_above, ">", 1, term.low), (column_below, "<", -1, term.high)]
    present = [(column, sign, way, bound) for column, sign, way, bound in bounds if bound is not None]
    text = " AND ".join(f"episodes.{column} {sign}{'=' * bound.included} ?" for column, sign, _, bound in present)
    return _Clause(
        text, tuple(_loosened(term.key, way if bound.included else -way, bound.value) for _, _, way, bound in present)
    )


def _loosened(key: str, way: int, value: float) -> float:
    """Moves a bound a little down (`way` 1) or up (-1), since fractions were rounded when they were stored."""
    return value - way * 1e-6 * max(1.0, abs(value)) if key in FRACTIONS else value


def _string(text: str) -> str:
    return '"' + clean(text).replace('"', '""') + '"'


def _all(clauses: Iterable[_Clause]) -> str:
    return " AND ".join(f"({clause.text})" for clause in clauses) or "1"


def _values(clauses: Iterable[_Clause]) -> Iterator[Any]:
    return (value for clause in clauses for value in clause.values)
