"""The weights of all models that learn in a run: saved, loaded and published together; and what a step has recorded of
them side by side."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sojourn.protocols import Trainer
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.train.loop import StepResult, Update
from sojourn.train.seating import POLICY
from sojourn.types import Credit, Episode, FloatArray, Group, Score, Streams, Trajectory

OTHERS = "models"  # a folder in that of the policy's weights
WEIGHT = "weight"  # of each token in the step, before minibatches scale it

PerTurn = tuple[FloatArray, ...]


def folder_of(folder: Path, model: str) -> Path:
    """Returns where the weights of a model are, beside the policy's in `folder`."""
    return folder if model == POLICY else folder / OTHERS / model


def save(trainers: Mapping[str, Trainer], folder: Path, *, go_on: Collection[str] = ()) -> None:
    """Writes the weights of all models that learn in a run, and what is needed to go on with those of `go_on`."""
    for model, trainer in trainers.items():
        place = folder_of(folder, model)
        place.mkdir(parents=True, exist_ok=True)
        trainer.save(place, weights_only=model not in go_on)


def load(trainers: Mapping[str, Trainer], folder: Path, *, go_on: Collection[str] = ()) -> None:
    """Restores what `save` wrote. A model that did not learn in the run which wrote it stays as it is."""
    for model, trainer in trainers.items():
        if (place := folder_of(folder, model)).is_dir():
            trainer.load(place, weights_only=model not in go_on)


async def publish(trainers: Mapping[str, Trainer], *, again: bool = False) -> None:
    """Publishes the present weights of all models; `again` under the versions that they had."""
    for trainer in trainers.values():
        trainer.version -= again
        await trainer.publish()


class Trained(NamedTuple):
    """The groups of a step of which anything was trained, with what was computed for each of their trajectories."""

    groups: Sequence[Group]
    scores: Sequence[Sequence[Score]]
    credit: Sequence[Sequence[Credit]]
    streams: Streams


class _Computed(NamedTuple):
    """The credit and the streams of one trajectory."""

    credit: Credit
    streams: Mapping[str, PerTurn]


def trained_by_all(result: StepResult, weights: Mapping[str, list[list[PerTurn]]]) -> Trained:
    """Returns what all models were trained on in a step, with the stream "weight", which is given by model. A
    trajectory that its model's filters left out has no weight and no credit, and a stream that its model did not read
    is NaN."""
    if len(result.updates) == 1:
        [(model, update)] = result.updates.items()
        streams = {**update.streams, WEIGHT: weights[model]}
        return Trained(update.groups, update.scores, update.credit, streams)
    computed: dict[tuple[str, int], _Computed] = {}
    for model, update in result.updates.items():
        computed |= _by_trajectory(update, weights[model])
    names = dict.fromkeys(name for one in computed.values() for name in one.streams)
    kept: list[ScoredGroup] = []
    for group, scores in zip(result.groups, result.scores, strict=True):
        numbers = [n for n, e in enumerate(group.episodes) if any((e.id, at) in computed for at in _places(e))]
        if numbers:
            kept.append(ScoredGroup(group, list(scores)).select(numbers))
    rows = [
        [
            computed.get((episode.id, place)) or _untrained(episode.trajectories[place])
            for episode, place in _trained_places(one.group)
        ]
        for one in kept
    ]
    streams = {
        name: [
            [
                row.streams.get(name) or _filled(trajectory, np.nan)
                for row, trajectory in zip(of, trajectories, strict=True)
            ]
            for of, trajectories in zip(rows, (one.group.trajectories for one in kept), strict=True)
        ]
        for name in names
    }
    credit = [[row.credit for row in of_group] for of_group in rows]
    return Trained([one.group for one in kept], [one.scores for one in kept], credit, streams)


def _by_trajectory(update: Update, weights: list[list[PerTurn]]) -> dict[tuple[str, int], _Computed]:
    """Returns what was computed for each trajectory of a model, by its episode and its place in that."""
    columns = {**update.streams, WEIGHT: weights}
    return {
        (episode.id, place): _Computed(update.credit[g][t], {name: values[g][t] for name, values in columns.items()})
        for g, group in enumerate(update.groups)
        for t, (episode, place) in enumerate(_trained_places(group))
    }


def _trained_places(group: Group) -> list[tuple[Episode, int]]:
    """Returns the episode of each of `group.trajectories`, and its place in that: a seat may have several there."""
    return [(episode, place) for episode in group.episodes if episode.error is None for place in _places(episode)]


def _places(episode: Episode) -> list[int]:
    return [place for place, trajectory in enumerate(episode.trajectories) if trajectory.trainable]


def _untrained(trajectory: Trajectory) -> _Computed:
    return _Computed(Credit.uniform(trajectory, 0.0), {WEIGHT: _filled(trajectory, 0.0)})


def _filled(trajectory: Trajectory, value: float) -> PerTurn:
    return tuple(np.full(len(turn.sample.tokens), value, dtype=np.float32) for turn in trajectory.turns)
