"""Stores of single episodes that say what a test wants to find."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Ending, Episode, Group, Message, Role, Sample, Stop, Task, Trajectory, Turn, Versions


def told(*said: str, shown: str = "", name: str = "a", error: str | None = None, tags: tuple[str, ...] = (), calls=()):
    """A group of one episode that says these things."""
    sample = Sample(np.arange(2), np.zeros(2, dtype=np.float32), Versions(0, 0), Stop.END)
    turns = tuple(
        Turn(number - 1, np.arange(3), sample, Message(Role.ASSISTANT, text, calls=tuple(calls)),
             observed=(Message(Role.USER, shown),))
        for number, text in enumerate(said)
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
