"""In a match of the arena, a group is a task as all operators played it, each in a stage of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sojourn.arena import FACTS, STAGE
from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder


def beside(store: EpisodeStore, entries: Sequence[EpisodeRow]) -> Sequence[EpisodeRow]:
    """The episodes of a group; in a match, those of the other operators too, in the order in which they were named."""
    named = _operators(store)
    if not entries or not named:
        return entries
    order = {STAGE + name: at for at, name in enumerate(named)}
    first = entries[0]
    found = [e for e in store.query(task=first.task, step=first.step) if e.stage in order and e.place == first.place]
    return sorted(found, key=lambda entry: order[entry.stage])


def called(store: EpisodeStore, entries: Sequence[EpisodeRow]) -> list[str]:
    """What each episode is called above its column: its number, or in a match who played."""
    named = _operators(store)
    return [
        entry.stage.removeprefix(STAGE) if entry.stage.removeprefix(STAGE) in named else f"episode {at}"
        for at, entry in enumerate(entries)
    ]


def _operators(store: EpisodeStore) -> list[str]:
    try:
        facts = RunFolder.read(store.folder).read_json(FACTS, {})
    except RecordError:
        return []
    named = facts.get("operators") if isinstance(facts, Mapping) else None
    return list(named) if isinstance(named, Mapping) else []
