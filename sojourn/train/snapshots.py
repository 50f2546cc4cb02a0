"""Earlier versions of the policy that take seats beside it: keeps, opens and chooses them."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.models.spec import Snapshots
from sojourn.protocols import Sampler, Trainer
from sojourn.record.atomic import new_folder, writing
from sojourn.threads import run_to_end
from sojourn.types import Episode, Group, SamplingParams

FOLDER = "snapshots"  # in the run folder
POLICY = SamplingParams.model
Opens = Callable[[str, Path], Awaitable[Sampler]]  # opens the policy's model under a name, with weights of a folder


@dataclass
class Results:
    """Counts plays of the policy against a snapshot, and its points: 1 for a win, 1/2 for a draw."""

    plays: int = 0
    points: float = 0.0

    @property
    def win_rate(self) -> float:
        """Returns the fraction of points, as if one more play had been won and one lost."""
        return (self.points + 1) / (self.plays + 2)


@dataclass
class SnapshotPool:
    """The snapshots of the policy under one name; that of the weights after `step` steps is the model `name@step`.

    Steps count over all stages of a run, as in the names of checkpoints. A play meets those that were certain to be
    there when it could begin, by results that were certain to be known then: so what it meets never depends on timing.
    """

    name: str
    config: Snapshots
    open: Opens
    players: dict[str, Sampler]  # those of the snapshots that are open, among others, by the name of their model
    # by the step after which they were known, then by snapshot
    results: defaultdict[int, defaultdict[int, Results]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Results))
    )
    _open: set[int] = field(default_factory=set[int])
    _folder: Path | None = None

    @property
    def path(self) -> Path:
        """Returns the folder of the snapshots."""
        assert self._folder is not None, "`attach` comes first"
        return self._folder / FOLDER / self.name

    def model(self, step: int) -> str:
        return f"{self.name}@{step}"

    def candidates(self, known: int) -> list[int]:
        """Returns the snapshots that a play may meet that began when `known` steps were certain to be done."""
        return sorted(step for step in self._open if step <= known)[-self.config.keep :]

    def choose(self, known: int, draw: float) -> str:
        """Returns the model of the snapshot that is chosen by `draw`, a number in [0, 1)."""
        steps = self.candidates(known)
        if not steps:
            raise AssertionError(f"no snapshot of {self.name} was open by step {known}")
        weights = np.array([self._weight(step, known, step == steps[-1]) for step in steps])
        place = int(np.searchsorted(np.cumsum(weights) / weights.sum(), draw, "right"))
        return self.model(steps[min(place, len(steps) - 1)])

    def _weight(self, step: int, known: int, newest: bool) -> float:
        match self.config.choose:
            case "uniform":
                return 1.0
            case "latest":
                return float(newest)
            case "pfsp_hard":
                return (1 - self.win_rate(step, known)) ** 2
            case "pfsp_variance":
                rate = self.win_rate(step, known)
                return rate * (1 - rate)

    def win_rate(self, step: int, known: int) -> float:
        """Returns the policy's win rate against a snapshot, by the results that were known after `known` steps."""
        found = [self.results[at][step] for at in sorted(self.results) if at <= known and step in self.results[at]]
        return Results(sum(one.plays for one in found), sum(one.points for one in found)).win_rate

    def points(self, done: int) -> float | None:
        """Returns the fraction of points in the plays of the step after which `done` steps are done; None where it had
        none."""
        found = self.results[done].values() if done in self.results else ()
        plays = sum(one.plays for one in found)
        return sum(one.points for one in found) / plays if plays else None

    def observe(self, done: int, groups: Sequence[Group]) -> None:
        """Counts the plays of a step, after which `done` steps are done."""
        for group in groups:
            for episode in group.episodes:
                for step, points in self._points_of(episode):
                    result = self.results[done][step]
                    result.plays += 1
                    result.points += points

    def _points_of(self, episode: Episode) -> list[tuple[int, float]]:
        """Returns the policy's points against each snapshot that an episode was played with; none where it failed.
        Who has the greater mean reward by the world over its seats has won."""
        if episode.error is not None:
            return []
        rewards = defaultdict[str, list[float]](list)
        for one in episode.trajectories:
            rewards[one.model].append(one.reward)
        means = {model: round(float(np.mean(found)), 9) for model, found in rewards.items()}  # equal ones stay equal
        if POLICY not in means:
            return []
        mine, theirs = means[POLICY], {self._step_of(model): mean for model, mean in means.items()}
        return [(step, (float(mine > v) + float(mine >= v)) / 2) for step, v in theirs.items() if step is not None]

    def _step_of(self, model: str) -> int | None:
        name, _, step = model.rpartition("@")
        return int(step) if name == self.name else None

    async def keep(self, step: int, trainer: Trainer) -> None:
        """Keeps the policy's present weights as the snapshot of `step`, and opens it."""
        await run_to_end(_write, self._path(step), trainer)
        await self._close(step)
        await self._play(step)

    def attach(self, folder: Path) -> None:
        """Says in which run folder the snapshots are kept."""
        self._folder = folder

    async def open_kept(self, done: int, known: int) -> bool:
        """Opens those of the first `done` steps that plays may meet which begin when at least `known` steps are done;
        returns whether there are any."""
        kept = [step for step in self._kept() if step <= done]
        for step in sorted(set(kept).difference(self._unused(kept, known))):
            await self._play(step)
        return bool(kept)

    async def release(self, known: int) -> None:
        """Closes the snapshots that no play meets any more where all further plays begin when at least `known` steps
        are done; forgets their results."""
        for step in self._unused(sorted(self._open), known):
            await self._close(step)
            for found in self.results.values():
                found.pop(step, None)
        newest = max(self.results, default=0)
        for done in [done for done, found in self.results.items() if not found and done < newest]:
            del self.results[done]

    def prune(self, known: int) -> None:
        """Removes the files of snapshots that a run has no use for which is resumed where `known` steps were certain
        to be done when a play could begin."""
        for step in self._unused(self._kept(), known):
            shutil.rmtree(self._path(step))

    def state(self) -> Mapping[str, Any]:
        return {
            str(done): {str(step): [one.plays, one.points] for step, one in found.items()}
            for done, found in self.results.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.results.clear()
        for done, found in state.items():
            self.results[int(done)].update({int(step): Results(*one) for step, one in found.items()})

    def _unused(self, steps: Sequence[int], known: int) -> list[int]:
        return [step for step in steps if step <= known][: -self.config.keep]

    def _kept(self) -> list[int]:
        """Returns the snapshots whose files are there, oldest first."""
        names = [re.fullmatch(r"step-(\d+)", path.name) for path in self.path.glob("step-*")]
        return sorted(int(found[1]) for found in names if found)

    def _path(self, step: int) -> Path:
        return self.path / f"step-{step:06d}"

    async def _play(self, step: int) -> None:
        if step not in self._open:
            self.players[self.model(step)] = await self.open(self.model(step), self._path(step))
            self._open.add(step)

    async def _close(self, step: int) -> None:
        if step in self._open:
            self._open.remove(step)
            await self.players.pop(self.model(step)).close()


def _write(path: Path, trainer: Trainer) -> None:
    with writing(path), new_folder(path, replace=True) as temporary:
        trainer.save(temporary, weights_only=True)
