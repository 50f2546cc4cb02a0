"""Which episodes of a run are exported, read one after another, and what the run says of them all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from sojourn.errors import RecordError
from sojourn.files import read_bytes
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The episodes whose ids are given, else all that a query finds (see `sojourn.record.search`); `tokens` asks a
    format that can do without them to hold them."""

    episodes: tuple[str, ...] = ()
    where: str = ""
    tokens: bool = False


class Played(NamedTuple):
    """An episode and its row in the index."""

    entry: EpisodeRow
    record: Record

    def reward(self, seat: int) -> float:
        """What the judge gave a seat in all; what the world paid it, where it was not judged."""
        trajectory = self.record.episode.trajectories[seat]
        number = sum(t.trainable for t in self.record.episode.trajectories[:seat])
        if trajectory.trainable and number < len(self.record.scores):
            return self.record.scores[number].total
        return trajectory.reward


@dataclass
class Chosen:
    """An open run and the choice of its episodes; `given` and `left_out` tell afterwards what came of it."""

    run: RunFolder
    store: EpisodeStore
    choice: Choice
    given: int = 0
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, run: RunFolder, choice: Choice) -> Chosen:
        chosen = cls(run, EpisodeStore(run.path), choice)
        chosen._require()
        return chosen

    def __enter__(self) -> Chosen:
        return self

    def __exit__(self, *exc: object) -> None:
        self.store.close()

    def __iter__(self) -> Iterator[Played]:
        """Every chosen episode whose record can be read, in the order of recording; the rest goes to `left_out`."""
        for entry, found in self.store.read_each(self.entries()):
            if isinstance(found, RecordError):
                self.left_out.append(f"episode {entry.id}: {found}")
                continue
            self.given += 1
            yield Played(entry, found)

    def plays(self) -> Iterator[Played]:
        """Without the episodes whose world failed: nothing can be learnt from what was said in them."""
        for played in self:
            if played.record.episode.error is None:
                yield played
            else:
                self.given -= 1
                self.left_out.append(f"episode {played.entry.id}: its world failed: {played.record.episode.error}")

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.run.config

    @cached_property
    def versions(self) -> dict[str, str]:
        return self.run.versions

    @property
    def name(self) -> str:
        return self.run.path.resolve().name

    @cached_property
    def config_digest(self) -> str:
        return hashlib.sha256(read_bytes(self.run.path / "config.toml")).hexdigest()

    @property
    def model(self) -> str:
        """The name of the model that was trained."""
        model = self.config.get("model")
        return str(model.get("name", "")) if isinstance(model, dict) else ""

    def entries(self) -> Iterator[EpisodeRow]:
        """Their rows."""
        if self.choice.episodes:
            yield from map(self._named, self.choice.episodes)
        elif self.choice.where:
            yield from self.store.matching(self.choice.where)
        else:
            yield from self.store.query()

    def _named(self, name: str) -> EpisodeRow:
        """The row of an episode, as it was recorded last."""
        found = list(self.store.query(id=name))
        if not found:
            raise RecordError(f"no episode '{name}' in {self.run.path}: `sojourn show {self.run.path}` lists some")
        return found[-1]

    def _require(self) -> None:
        """Refuses a choice of nothing, in the words of what there is."""
        if next(self.entries(), None) is not None and all(map(self._named, self.choice.episodes)):
            return
        stages = ", ".join(dict.fromkeys(count.stage for count in self.store.steps()))
        raise RecordError(f"no episode of {self.run.path} fits '{self.choice.where}': it has {stages or 'none at all'}")


def windows(trajectory: Trajectory) -> list[list[int]]:
    """The contexts that a model saw to their ends: root-to-leaf paths of the turns by their parents."""
    return _paths([turn.parent for turn in trajectory.turns])


def courses(trajectory: Trajectory) -> list[list[int]]:
    """What happened in the world, path by path: a new window goes on after the turn before it, a branch after its
    parent."""
    return _paths([turn.parent if turn.parent >= 0 else number - 1 for number, turn in enumerate(trajectory.turns)])


def _paths(parents: list[int]) -> list[list[int]]:
    found = []
    for leaf in range(len(parents)):
        if leaf in parents:
            continue
        path = [leaf]
        while (parent := parents[path[-1]]) >= 0:
            path.append(parent)
        found.append(path[::-1])
    return found
