"""The page of a group: the actions and rewards of its episodes side by side, and where they diverge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from starlette.requests import Request

from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.origins import recorded_origin
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.terminal.episode import TurnRecord, turns_in_order
from sojourn.terminal.find import group_episodes
from sojourn.view.arena_columns import column_names, with_other_operators
from sojourn.view.episode import context_note
from sojourn.view.group_tree import Line, Node, tree_svg
from sojourn.view.message_text import action_summary
from sojourn.view.page import Page, address, render, run_cache
from sojourn.view.pairs import anchors, pairs

MAX_CHARACTERS = 160  # of an action that are shown
MAX_GROUPS = 50  # of a task's history


class Cell(NamedTuple):
    """One action of one episode. Cells with the same `prefix` belong to episodes with the same actions so far."""

    anchor: str  # of the turn on its episode's page
    note: str  # the seat, if there are several, and whether a context or a branch starts here
    action: str
    reward: float | None
    advantage: float | None
    prefix: int
    diverges: bool  # whether episodes with the same earlier actions take different ones here
    malformed: bool


class Column(NamedTuple):
    """One episode with its cells. `problem` says why the episode cannot be read."""

    episode: EpisodeRow
    cells: Sequence[Cell | None]
    problem: str = ""


class PlayedGroup(NamedTuple):
    """A group of a task's history, with the means of its episodes that did not fail."""

    stage: str
    step: int
    place: int
    episodes: int
    success: float | None
    reward: float | None


def index(request: Request) -> Page:
    key, stage, step, place = (request.path_params[name] for name in ("run", "stage", "step", "place"))
    cache = run_cache(request)
    with cache.store(cache.path(key)) as store:
        entries = with_other_operators(store, group_episodes(store, stage, step, place))
        if not entries:
            raise RecordError(f"{key} has no group {place} at step {step} of the stage '{stage}'")
        records = [_read(store, entry) for entry in entries]
        names = column_names(store, entries)
        before, after = _neighbour_groups(store, stage, step, place)
        history, origin = task_history(store, entries[0].task), recorded_origin(store, entries[0])
    shown = columns(entries, records)
    return render(
        request, "group.html", run=key, stage=stage, step=step, place=place, columns=shown,
        tree=tree_svg([_line(key, *one) for one in zip(shown, records, strict=True)]),
        names=names, task=next((r.episode.task for r in records if isinstance(r, Record)), None),
        before=before, after=after, history=history, problems=store.troubles,
        origin=origin, pairs=pairs(entries, records, names),
    )  # fmt: skip


def _line(run: str, column: Column, record: Record | str) -> Line:
    """Returns an episode as the tree shows it."""

    def link(cell: Cell) -> str:
        return f"{address('runs', run, 'episodes', column.episode.id)}#turn-{cell.anchor}"

    nodes = [Node(link(cell), cell.action, cell.advantage) for cell in column.cells if cell is not None]
    branch = record.episode.branch if isinstance(record, Record) else None
    return Line(column.episode.id, branch, nodes, column.episode.reward)


def _read(store: EpisodeStore, entry: EpisodeRow) -> Record | str:
    """Returns the record of an episode, or why it cannot be read."""
    try:
        return store.read(entry)
    except RecordError as error:
        return str(error)


def _neighbour_groups(store: EpisodeStore, stage: str, step: int, place: int) -> tuple[int | None, int | None]:
    """Returns the places of the groups before and after a group of a step, None if there is none."""
    statement = "SELECT max(place) FROM episodes WHERE stage = ? AND step = ?"
    last = store.rows(statement, (stage, step), lambda row: row[0])[0]
    return (place - 1 if place else None), (place + 1 if last is not None and place < last else None)


def task_history(store: EpisodeStore, task: str) -> list[PlayedGroup]:
    """Returns the groups that played a task, evaluations included, the newest `MAX_GROUPS` in order of recording."""
    statement = (
        "SELECT stage, step, place, count(*), avg(success), avg(reward) FROM episodes "
        "WHERE task = ? AND error IS NULL GROUP BY stage, step, place ORDER BY min(row) DESC LIMIT ?"
    )
    return store.rows(statement, (task, MAX_GROUPS), lambda row: PlayedGroup(*row))[::-1]


def columns(entries: Sequence[EpisodeRow], records: Sequence[Record | str]) -> list[Column]:
    """Returns one column per episode, with its actions by turn; all columns have the same height."""
    turns = [turns_in_order(record) if isinstance(record, Record) else [] for record in records]
    height = max(map(len, turns), default=0)
    prefixes = _action_prefixes([list(map(_action, of_episode)) for of_episode in turns], height)
    result: list[Column] = []
    for entry, record, played, prefix in zip(entries, records, turns, prefixes, strict=True):
        several = isinstance(record, Record) and len(record.episode.trajectories) > 1
        cells: list[Cell | None] = [
            _cell(turn, several, anchor, *shared)
            for turn, anchor, shared in zip(played, anchors(record, played), prefix, strict=True)
        ]
        result.append(Column(entry, cells + [None] * (height - len(cells)), record if isinstance(record, str) else ""))
    return result


def _action_prefixes(actions: Sequence[Sequence[str]], height: int) -> list[list[tuple[int, bool]]]:
    """Numbers the prefixes of the episodes' action sequences.

    Returns, for each episode and turn, the number of its prefix, and whether episodes that share the shorter prefix
    diverge here. Of the prefixes that continue another one, the first keeps its number and the others get new ones.
    """
    result: list[list[tuple[int, bool]]] = [[] for _ in actions]
    at, shown, newest = [0] * len(actions), [0], 0  # the prefix of each episode, and the number of each prefix
    for turn in range(height):
        present = [k for k, of_episode in enumerate(actions) if turn < len(of_episode)]
        longer: dict[tuple[int, str], int] = {}  # the prefixes that continue one by an action
        continued = Counter[int]()
        for k in present:
            if (step := (at[k], actions[k][turn])) in longer:
                continue
            longer[step] = len(shown)
            newest += continued[at[k]] > 0
            shown.append(newest if continued[at[k]] else shown[at[k]])
            continued[at[k]] += 1
        for k in present:
            before, at[k] = at[k], longer[at[k], actions[k][turn]]
            result[k].append((shown[at[k]], continued[before] > 1))
    return result


def _action(played: TurnRecord) -> str:
    """Returns a text that is the same for turns of the same seat with the same action."""
    return f"{played.seat.name}\0{action_summary(played.turn, 10**6)}"


def _cell(played: TurnRecord, several: bool, anchor: str, prefix: int, diverges: bool) -> Cell:
    score, credit = played.seat.score, played.seat.credit
    tokens = credit.tokens[played.turn_index] if credit is not None else ()
    return Cell(
        anchor=anchor,
        note=", ".join(filter(None, (played.seat.name * several, context_note(played.turn.parent, played.turn_index)))),
        action=action_summary(played.turn, MAX_CHARACTERS),
        reward=None if score is None else float(score.turns[played.turn_index]),
        advantage=float(tokens.mean()) if len(tokens) else None,  # type: ignore[union-attr]
        prefix=prefix,
        diverges=diverges,
        malformed=bool(played.turn.info.get("malformed")),
    )
