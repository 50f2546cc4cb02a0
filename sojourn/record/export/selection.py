"""Selects the episodes of a run that are exported, and reads them one after another."""

from __future__ import annotations

import hashlib
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from sojourn.errors import RecordError
from sojourn.files import read_bytes
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.origins import all_reused
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.stage_names import stages_in_words
from sojourn.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The episodes with the given ids, else all that match the query `where` (see `sojourn.record.search`).

    `tokens` asks a format in which they are optional to include them.
    """

    episodes: tuple[str, ...] = ()
    where: str = ""
    tokens: bool = False


class PlayedEpisode(NamedTuple):
    """A record, its row in the index, and the later steps of its stage that trained its group again."""

    entry: EpisodeRow
    record: Record
    reused_in: Sequence[int] = ()

    def reward(self, seat: int) -> float:
        """Returns the total score of a seat, or the reward of its world if it was not scored."""
        trajectory = self.record.episode.trajectories[seat]
        number = sum(t.trainable for t in self.record.episode.trajectories[:seat])
        if trajectory.trainable and number < len(self.record.scores):
            return self.record.scores[number].total
        return trajectory.reward


@dataclass
class SelectedEpisodes:
    """The selected episodes of an open run; iterating fills in `read_count` and `left_out`."""

    run: RunFolder
    store: EpisodeStore
    selection: Selection
    read_count: int = 0
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, run: RunFolder, selection: Selection) -> SelectedEpisodes:
        selected = cls(run, EpisodeStore(run.path), selection)
        selected._require_any()
        return selected

    def __enter__(self) -> SelectedEpisodes:
        return self

    def __exit__(self, *exc: object) -> None:
        self.store.close()

    def __iter__(self) -> Iterator[PlayedEpisode]:
        """Yields every selected episode that can be read, in order of recording; `left_out` gets the others."""
        for entry, loaded in self.store.read_each(self.entries()):
            if isinstance(loaded, RecordError):
                self.left_out.append(f"episode {entry.id}: {loaded}")
                continue
            self.read_count += 1
            place = entry.stage, entry.step, entry.place
            yield PlayedEpisode(entry, loaded, self._reused_in.get(place, ()))

    def without_failures(self) -> Iterator[PlayedEpisode]:
        """Yields the episodes without an infrastructure failure; those with one are never trained on."""
        for played in self:
            if played.record.episode.error is None:
                yield played
            else:
                self.read_count -= 1
                self.left_out.append(f"episode {played.entry.id}: its world failed: {played.record.episode.error}")

    @cached_property
    def _reused_in(self) -> Mapping[tuple[str, int, int], Sequence[int]]:
        """Returns the steps that trained a group again, by the stage, the step and the place where it is recorded."""
        steps: defaultdict[tuple[str, int, int], list[int]] = defaultdict(list)
        for group in all_reused(self.store):
            steps[group.stage, group.of_step, group.of_place].append(group.step)
        return steps

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
        """Returns the name of the model that was trained."""
        model = self.config.get("model")
        return str(model.get("name", "")) if isinstance(model, dict) else ""

    def entries(self) -> Iterator[EpisodeRow]:
        """Yields the rows of the selected episodes."""
        if self.selection.episodes:
            yield from map(self._named, self.selection.episodes)
        elif self.selection.where:
            yield from self.store.matching(self.selection.where)
        else:
            yield from self.store.query()

    def _named(self, name: str) -> EpisodeRow:
        """Returns the row of an episode as it was recorded last."""
        rows = list(self.store.query(id=name))
        if not rows:
            show = f"sojourn show {shlex.quote(str(self.run.path))}"
            raise RecordError(f"no episode '{name}' in {self.run.path}: `{show}` lists some")
        return rows[-1]

    def _require_any(self) -> None:
        """Raises RecordError if nothing is selected, and says what stages there are."""
        if next(self.entries(), None) is not None and all(map(self._named, self.selection.episodes)):
            return
        stages = stages_in_words(dict.fromkeys(count.stage for count in self.store.steps()))
        raise RecordError(
            f"no episode of {self.run.path} matches '{self.selection.where}': its stages are {stages or 'empty'}"
        )


def windows(trajectory: Trajectory) -> list[list[int]]:
    """Returns the contexts that a model saw, each to its end: root-to-leaf paths of the turns by their parents."""
    return _paths([turn.parent for turn in trajectory.turns])


def paths_in_world(trajectory: Trajectory) -> list[list[int]]:
    """Returns the paths that the world took: a new window follows the turn before it, a branch its parent."""
    return _paths([turn.parent if turn.parent >= 0 else number - 1 for number, turn in enumerate(trajectory.turns)])


def _paths(parents: list[int]) -> list[list[int]]:
    paths = []
    for leaf in range(len(parents)):
        if leaf in parents:
            continue
        path = [leaf]
        while (parent := parents[path[-1]]) >= 0:
            path.append(parent)
        paths.append(path[::-1])
    return paths
