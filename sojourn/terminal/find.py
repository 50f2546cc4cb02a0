"""Finds an episode by its id or address, and prints the episodes that a query finds."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from sojourn.config.lookup import likely
from sojourn.errors import RecordError
from sojourn.record import metrics
from sojourn.record.episodes import vocabulary
from sojourn.record.episodes.address import FORM, Address
from sojourn.record.episodes.episode_row import EpisodeRow, from_values
from sojourn.record.episodes.origins import recorded_origin
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.search.excerpt import Excerpt
from sojourn.record.search.search_results import MAX_PAGE_ROWS
from sojourn.record.stage_names import stages_in_words
from sojourn.terminal.clean import LIMIT, clean, one_line, shell_word
from sojourn.terminal.episode import EpisodeContext
from sojourn.terminal.jsonable import jsonable
from sojourn.terminal.rows import rows
from sojourn.terminal.run import collect_warnings, episode_columns

MAX_NAMED = 5  # ids that an error lists if several match


def load_episode(run: Path, name: str, full: bool = False) -> tuple[Record, EpisodeContext]:
    """Reads the record of an episode and what is printed with it."""
    missing: list[str] = []
    with collect_warnings(missing), EpisodeStore(run) as store:
        entry = find_episode(store, name)
        siblings = group_episodes(store, entry.stage, entry.step, entry.place)
        record, origin = store.read(entry), recorded_origin(store, entry)
    limit = None if full else LIMIT
    return record, EpisodeContext(run, entry, siblings, _vocabulary(run), _version(run, entry), limit, missing, origin)


def search_table(run: Path, query: str, limit: int, width: int) -> Group:
    """Returns a table of the episodes that match a query, with excerpts in which the words of the query are marked."""
    missing: list[str] = []
    with collect_warnings(missing), EpisodeStore(run) as store:
        page = store.search(query, limit)
        stages = dict.fromkeys(count.stage for count in store.steps()) if not page.rows else {}
    entries = [row.entry for row in page.rows]
    lines: list[RenderableType] = [Text(f"{page.total_text} episode{'s' * (page.total != 1)}", "dim")]
    if not entries:
        names = stages_in_words(one_line(name, 40) for name in stages) or "empty"
        lines = [Text(f"no episode of {one_line(str(run))} matches '{one_line(query, 200)}'; its stages are {names}")]
    else:
        lines += rows(episode_columns(entries), width, [_excerpt(row.excerpt) for row in page.rows])
    if page.next is not None:
        wider = min(5 * limit, MAX_PAGE_ROWS)
        more = f"--limit {wider} shows more" if wider > limit else "narrow the search to see others"
        lines.append(Text(f"the first {len(entries)}: {more}", "dim"))
    return Group(*lines, *(Text(f"missing: {one_line(sentence, 500)}", "red") for sentence in missing))


def search_json(run: Path, query: str, limit: int) -> str:
    """Returns the episodes that match a query as JSON, with the warnings as `missing`."""
    missing: list[str] = []
    with collect_warnings(missing), EpisodeStore(run) as store:
        page = store.search(query, limit)
    return json.dumps({"query": query, **jsonable(page), "missing": missing}, indent=1)


def _excerpt(excerpt: Excerpt | None) -> Text:
    text = Text(style="dim")
    if excerpt is not None:
        text.append(f"turn {excerpt.turn + 1}: ")
        for segment in excerpt.segments:
            text.append(clean(segment.text, 500), "bold not dim" if segment.hit else "")
    return text


def find_episode(store: EpisodeStore, name: str) -> EpisodeRow:
    """Finds an episode by its id, by its address, or by the beginning of its id."""
    exact = list(store.query(id=name))
    if exact:
        return exact[-1]
    if (address := Address.parse(name)) is not None:
        members = group_episodes(store, address.stage, address.step, address.group)
        if address.place < len(members):
            return members[address.place]
        nearest = _nearest_address(store, address)
        raise RecordError(f"there is no episode '{one_line(name)}' in {store.folder}: {nearest}")
    matches = store.ids_starting_with(name, MAX_NAMED + 1)
    if len(matches) == 1:
        return list(store.query(id=matches[0]))[-1]
    if matches:
        some = ", ".join(one_line(id_) for id_ in matches[:MAX_NAMED]) + (", ..." if len(matches) > MAX_NAMED else "")
        raise RecordError(f"the ids of several episodes in {store.folder} begin with '{name}': {some}; give more of it")
    raise RecordError(
        f"there is no episode '{one_line(name)}' in {store.folder}: give an id, the beginning of one, or an "
        f"address {FORM}, such as rl:3/0/1 (sojourn show {shell_word(store.folder)} lists some)"
    )


def _nearest_address(store: EpisodeStore, address: Address) -> str:
    """Returns which part of an address does not exist, and what exists instead."""
    stage, step, group, _ = address
    steps = [count.step for count in store.steps() if count.stage == stage]
    if not steps:
        stages = dict.fromkeys(count.stage for count in store.steps())
        return f"its stages are {stages_in_words(map(one_line, stages)) or 'empty'}{likely(stage, stages)}"
    if step not in steps:
        return f"the stage '{one_line(stage)}' has the steps {min(steps)} to {max(steps)}"
    members = len(group_episodes(store, stage, step, group))
    if members:
        return f"the group {one_line(f'{stage}:{step}/{group}')} has the episodes 0 to {members - 1}"
    show = f"sojourn show {shell_word(store.folder)} --stage {shell_word(stage)} --step {step}"
    return f"`{show}` lists the groups of this step"


def group_episodes(store: EpisodeStore, stage: str, step: int, place: int) -> list[EpisodeRow]:
    """Returns the episodes of a group, in order."""
    statement = "SELECT {columns} FROM episodes WHERE stage = ? AND step = ? AND place = ? ORDER BY part, number"
    return store.rows(statement, (stage, step, place), from_values)


def _vocabulary(run: Path) -> vocabulary.Vocabulary | None:
    try:
        return vocabulary.read(run)
    except RecordError:  # --prompt, which needs it, reports the error
        return None


def _version(run: Path, entry: EpisodeRow) -> int | None:
    """Returns the version of the weights after the episode's training step, None if the metrics do not say."""
    try:
        lines = metrics.read(run / "metrics.jsonl")
        versions = [at.values.get("version") for at in lines if (at.stage, at.step) == (entry.stage, entry.step)]
    except RecordError:
        return None
    return int(versions[-1]) if versions and versions[-1] is not None else None
