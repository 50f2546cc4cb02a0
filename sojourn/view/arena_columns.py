"""The columns of a group page. In an arena match each operator has a stage of its own, so a group gathers all of
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sojourn.arena import OPERATORS_FILE, STAGE_PREFIX
from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder


def with_other_operators(store: EpisodeStore, entries: Sequence[EpisodeRow]) -> Sequence[EpisodeRow]:
    """Returns the episodes of a group; in a match also those of the other operators, in the order of the command
    line."""
    operators = _operators(store)
    if not entries or not operators:
        return entries
    order = {STAGE_PREFIX + name: at for at, name in enumerate(operators)}
    first = entries[0]
    of_task = store.query(task=first.task, step=first.step)
    return sorted(
        (entry for entry in of_task if entry.stage in order and entry.place == first.place),
        key=lambda entry: order[entry.stage],
    )


def column_names(store: EpisodeStore, entries: Sequence[EpisodeRow]) -> list[str]:
    """Returns the heading of each episode's column: its number, or in a match the name of its operator."""
    operators = _operators(store)
    names = [entry.stage.removeprefix(STAGE_PREFIX) for entry in entries]
    return [name if name in operators else f"episode {at}" for at, name in enumerate(names)]


def _operators(store: EpisodeStore) -> list[str]:
    """Returns the names of the operators of a match, nothing for the folder of a training run."""
    try:
        facts = RunFolder.read(store.folder).read_json(OPERATORS_FILE, {})
    except RecordError:
        return []
    operators = facts.get("operators") if isinstance(facts, Mapping) else None
    return list(operators) if isinstance(operators, Mapping) else []
