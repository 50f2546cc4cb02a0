"""An episode by what a person calls it, and episodes by a query."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from sojourn.errors import RecordError
from sojourn.record import metrics
from sojourn.record.episodes import vocabulary
from sojourn.record.episodes.episode_row import EpisodeRow, from_values
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.search.excerpt import Excerpt
from sojourn.terminal.clean import LIMIT, clean, line
from sojourn.terminal.episode import Shown
from sojourn.terminal.plain import plain
from sojourn.terminal.rows import rows
from sojourn.terminal.run import episode_columns, warned_in

SOME = 5  # ids that are named where several begin alike


def episode(run: Path, name: str, full: bool = False) -> tuple[Record, Shown]:
    """The record of an episode, and what is needed to show it."""
    missing: list[str] = []
    with warned_in(missing), EpisodeStore(run) as store:
        entry = found(store, name)
        siblings = group(store, entry.stage, entry.step, entry.place)
        record = store.read(entry)
    limit = None if full else LIMIT
    return record, Shown(run, entry, siblings, _words(run), _version(run, entry), limit, missing)


def matches(run: Path, query: str, limit: int, width: int) -> Group:
    """What a query finds, with the words it asks for where they stand."""
    missing: list[str] = []
    with warned_in(missing), EpisodeStore(run) as store:
        page = store.search(query, limit)
    entries = [row.entry for row in page.rows]
    told: list[RenderableType] = [Text(f"{page.total_text} episode{'s' * (page.total != 1)}", "dim")]
    if entries:
        told += rows(episode_columns(entries), width, [_excerpt(row.excerpt) for row in page.rows])
    if page.next is not None:
        told.append(Text(f"the first {len(entries)}: --limit {5 * limit} shows more", "dim"))
    return Group(*told, *(Text(f"missing: {line(sentence, 500)}", "red") for sentence in missing))


def matches_as_json(run: Path, query: str, limit: int) -> str:
    """For scripts: the page, with what was warned of."""
    missing: list[str] = []
    with warned_in(missing), EpisodeStore(run) as store:
        page = store.search(query, limit)
    return json.dumps({"query": query, **plain(page), "missing": missing}, indent=1)


def _excerpt(excerpt: Excerpt | None) -> Text:
    told = Text(style="dim")
    if excerpt is not None:
        told.append(f"turn {excerpt.turn + 1}: ")
        for segment in excerpt.segments:
            told.append(clean(segment.text, 500), "bold not dim" if segment.hit else "")
    return told


def found(store: EpisodeStore, name: str) -> EpisodeRow:
    """By its id, else by its address stage/step/group/place, else by how its id begins."""
    exact = list(store.query(id=name))
    if exact:
        return exact[-1]
    stage, *numbers = name.rsplit("/", 3)
    if len(numbers) == 3 and all(number.isdecimal() and len(number) < 19 for number in numbers):
        step, place, number = map(int, numbers)
        members = group(store, stage, step, place)
        if number < len(members):
            return members[number]
    begun = store.ids_starting_with(name, SOME + 1)
    if len(begun) == 1:
        return list(store.query(id=begun[0]))[-1]
    if begun:
        some = ", ".join(line(id_) for id_ in begun[:SOME]) + (", ..." if len(begun) > SOME else "")
        raise RecordError(f"several episodes of {store.folder} begin with '{name}': {some}: give more of it")
    raise RecordError(
        f"no episode '{line(name)}' in {store.folder}: give an id, how one begins, or stage/step/group/place "
        f"(sojourn show {store.folder} lists some)"
    )


def group(store: EpisodeStore, stage: str, step: int, place: int) -> list[EpisodeRow]:
    """The episodes of a group, in order."""
    statement = "SELECT {columns} FROM episodes WHERE stage = ? AND step = ? AND place = ? ORDER BY part, number"
    return store.rows(statement, (stage, step, place), from_values)


def _words(run: Path) -> vocabulary.Vocabulary | None:
    try:
        return vocabulary.read(run)
    except RecordError:  # told where it is needed: by --prompt
        return None


def _version(run: Path, entry: EpisodeRow) -> int | None:
    """The weights' version after the episode's step."""
    try:
        lines = metrics.read(run / "metrics.jsonl")
        held = [at.values.get("version") for at in lines if (at.stage, at.step) == (entry.stage, entry.step)]
    except RecordError:
        return None
    return int(held[-1]) if held and held[-1] is not None else None
