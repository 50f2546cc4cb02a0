"""Makes stores of single episodes, whose texts a test searches for."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Ending, Episode, Group, Message, Role, Sample, Stop, Task, Trajectory, Turn, Versions


def group_of(
    *replies: str, observed: str = "", name: str = "a", error: str | None = None, tags: tuple[str, ...] = (), calls=()
):
    """Returns a group of one episode whose turns have these replies."""
    sample = Sample(np.arange(2), np.zeros(2, dtype=np.float32), Versions(0, 0), Stop.END)
    turns = tuple(
        Turn(number - 1, np.arange(3), sample, Message(Role.ASSISTANT, text, calls=tuple(calls)),
             observed=(Message(Role.USER, observed),))
        for number, text in enumerate(replies)
    )  # fmt: skip
    task = Task("made", {}, 0, "train", tags)
    return Group(0, task, (Episode(name, task, (Trajectory("agent", turns, Ending.DONE),), error),))


def recorded(folder: Path, *groups: Group) -> EpisodeStore:
    store = EpisodeStore(folder, write=True)
    for step, group in enumerate(groups):
        store.append("rl", step, [group])
    return store


def ids(store: EpisodeStore, text: str) -> list[str]:
    return [row.entry.id for row in store.search(text).rows]
