"""The episodes of a group side by side: what each did, what it earned, and where they part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from starlette.requests import Request

from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.terminal.episode import Move, moves
from sojourn.terminal.find import group
from sojourn.view.beside import beside, called
from sojourn.view.episode import opens
from sojourn.view.page import Page, render, shelf
from sojourn.view.words import first_words

LONGEST = 160  # characters of an action


class Cell(NamedTuple):
    """One action of one episode. `way` is the number of those who did the same so far; `parts`: a way divides here."""

    place: str  # how its episode's page names the turn
    note: str  # whose turn it is, of several seats, and what begins with it
    said: str
    reward: float | None
    advantage: float | None
    way: int
    parts: bool
    malformed: bool


class Column(NamedTuple):
    """One episode; `trouble` says why it cannot be read."""

    entry: EpisodeRow
    cells: Sequence[Cell | None]
    trouble: str = ""


def index(request: Request) -> Page:
    key, stage, step, place = (request.path_params[name] for name in ("run", "stage", "step", "place"))
    shown = shelf(request)
    with shown.store(shown.path(key)) as store:
        entries = beside(store, group(store, stage, step, place))
        if not entries:
            raise RecordError(f"{key} has no group {place} at step {step} of the stage '{stage}'")
        records = [_read(store, entry) for entry in entries]
        names = called(store, entries)
        places = _around(store, stage, step, place)
    return render(
        request, "group.html", run=key, stage=stage, step=step, place=place, columns=columns(entries, records),
        names=names,
        task=next((r.episode.task for r in records if isinstance(r, Record)), None), before=places[0], after=places[1],
        missing=store.troubles,
    )  # fmt: skip


def _read(store: EpisodeStore, entry: EpisodeRow) -> Record | str:
    try:
        return store.read(entry)
    except RecordError as error:
        return str(error)


def _around(store: EpisodeStore, stage: str, step: int, place: int) -> tuple[int | None, int | None]:
    statement = "SELECT max(place) FROM episodes WHERE stage = ? AND step = ?"
    last = store.rows(statement, (stage, step), lambda row: row[0])[0]
    return (place - 1 if place else None), (place + 1 if last is not None and place < last else None)


def columns(entries: Sequence[EpisodeRow], records: Sequence[Record | str]) -> list[Column]:
    """The actions of all episodes by turn, in columns of one height."""
    played = [moves(record) if isinstance(record, Record) else [] for record in records]
    height = max((len(moves) for moves in played), default=0)
    ways = _ways([[_action(move) for move in moves] for moves in played], height)
    found: list[Column] = []
    for entry, record, acts, way in zip(entries, records, played, ways, strict=True):
        named = _places(record, acts)
        several = isinstance(record, Record) and len(record.episode.trajectories) > 1
        cells = [_cell(acts[at], several, named[at], *way[at]) if at < len(acts) else None for at in range(height)]
        found.append(Column(entry, cells, record if isinstance(record, str) else ""))
    return found


def _places(record: Record | str, acts: Sequence[Move]) -> list[str]:
    """As `TurnView.place`."""
    if isinstance(record, str):
        return []
    seats = {id(trajectory): at for at, trajectory in enumerate(record.episode.trajectories)}
    return [f"{seats[id(move.seat.trajectory)]}.{move.number}" for move in acts]


def _ways(said: Sequence[Sequence[str]], height: int) -> list[list[tuple[int, bool]]]:
    """For each episode and turn: which way it goes, and whether others who came the same way do something else.

    A way keeps its number where it goes on: the first who part from the others keep it, the rest have new ones.
    """
    found: list[list[tuple[int, bool]]] = [[] for _ in said]
    numbers: dict[tuple[str, ...], int] = {(): 0}
    newest = 0
    for turn in range(height):
        present = [k for k, actions in enumerate(said) if turn < len(actions)]
        ways = list(dict.fromkeys(tuple(said[k][: turn + 1]) for k in present))
        kept: set[tuple[str, ...]] = set()
        for way in ways:
            newest += way[:-1] in kept
            numbers[way] = newest if way[:-1] in kept else numbers[way[:-1]]
            kept.add(way[:-1])
        divided = {way[:-1] for way in ways if sum(other[:-1] == way[:-1] for other in ways) > 1}
        for k in present:
            way = tuple(said[k][: turn + 1])
            found[k].append((numbers[way], way[:-1] in divided))
    return found


def _action(move: Move) -> str:
    return f"{move.seat.name}\0{first_words(move.turn, 10**6)}"


def _cell(move: Move, several: bool, place: str, way: int, parts: bool) -> Cell:
    score, credit = move.seat.score, move.seat.credit
    tokens = credit.tokens[move.number] if credit is not None else ()
    return Cell(
        place=place,
        note=", ".join(filter(None, (move.seat.name * several, opens(move.turn.parent, move.number)))),
        said=first_words(move.turn, LONGEST),
        reward=None if score is None else float(score.turns[move.number]),
        advantage=float(tokens.mean()) if len(tokens) else None,  # type: ignore[union-attr]
        way=way,
        parts=parts,
        malformed=bool(move.turn.info.get("malformed")),
    )
