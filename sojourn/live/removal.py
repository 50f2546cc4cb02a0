"""Removes sessions that people took back from the records of the run that was trained on them.

The service removes a session from its own store at once, and leaves a removal there. Training carries it out between
its steps, and while it waits for sessions; where nothing trains, the service does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sojourn.live.facts import PendingRemoval, digest_of
from sojourn.live.store import LiveStore
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder

EPISODE = "live-"  # begins the ids of episodes that are sessions; their keys follow


def carry_out(
    store: LiveStore,
    episodes: EpisodeStore,
    since: Mapping[PendingRemoval, int] | None = None,
    *,
    all_recorded: bool = False,
) -> list[str]:
    """Removes from a run's records what is to be removed; returns the ids of the episodes that were there.

    A session may be in a step that is still trained, or being written: what is not found in the records stays to be
    removed until a later step is recorded, unless all are (`all_recorded`). What was found, too, where `since` has the
    latest step that may give it again: until a later one than that is recorded.
    """
    since = since or {}
    pending = store.removals()
    if not pending:
        return []
    newest = {count.stage: count.step for count in episodes.steps()}
    done, ids = list[PendingRemoval](), list[str]()
    for one in pending:
        rows = episodes.query(stage=one.stage, step=range(one.step, since.get(one, one.step) + 1))
        found = [row.id for row in rows if digest_of(_key(row.id)) == one.digest]
        ids += found
        recorded = newest.get(one.stage, -1) > max(one.step, since.get(one, -1))
        done += [one] if all_recorded or recorded or (found and one not in since) else []
    removed = episodes.remove(ids) if ids else []
    store.removed(done)
    return removed


def _key(episode: str) -> str:
    """Returns the key of the session that an episode was; a source that changed it may have added "#" and more."""
    return episode.removeprefix(EPISODE).partition("#")[0]


def carry_out_alone(run: Path) -> list[str]:
    """Does so where no process trains the run; raises `RecordError` where one does, or writes it."""
    store = LiveStore(run / "live")
    try:
        if not store.removals():
            return []
        with RunFolder.open(run), EpisodeStore(run, write=True) as episodes:
            return carry_out(store, episodes, all_recorded=True)
    finally:
        store.close()
