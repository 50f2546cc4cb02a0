"""Makes groups as a world and an agent leave them: synthetic trajectories with rewards, numbers, and words."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sojourn.checks import synthetic
from sojourn.checks.promise import BrokenError
from sojourn.checks.synthetic import FORKED, UNSTARTED, WINDOWED, Shape
from sojourn.errors import RecordError
from sojourn.record import checkpoint
from sojourn.types import Ending, Episode, Group, Message, Role, Score, Task, Trajectory, Turn

SHAPES = (
    (Shape(), Shape(turns=1), Shape(turns=4), Shape(turns=2)),
    (Shape(turns=2), Shape(turns=2)),
    (Shape(ending=Ending.TURNS), Shape(ending=Ending.MALFORMED), Shape(turns=1, ending=Ending.TIME)),
    (UNSTARTED, Shape(ending=Ending.TOKENS), Shape()),
    (FORKED, WINDOWED),
    (Shape(),),
)
DIED = "the browser died"


def groups(shapes: Sequence[Sequence[Shape]] = SHAPES, seed: int = 0) -> list[Group]:
    """Returns a group for each list of shapes, with one trajectory in every episode."""
    rng = np.random.default_rng(seed)
    return [_worded(group, rng) for group in synthetic.step(shapes, frozenset(), seed).groups]


def broken_groups() -> list[Group]:
    """Returns a group of which one episode failed, one in which a seat is not trained, and one that failed whole."""
    some, other, last = groups(SHAPES[:3], seed=1)
    opponent = replace(other.episodes[0].trajectories[0], agent="opponent", trainable=False)
    mixed = replace(other.episodes[0], trajectories=(opponent, *other.episodes[0].trajectories))
    return [
        replace(some, episodes=(replace(some.episodes[0], error=DIED), *some.episodes[1:])),
        replace(other, episodes=(mixed, *other.episodes[1:])),
        replace(last, episodes=tuple(replace(episode, error=DIED) for episode in last.episodes)),
    ]


def group_of(slot: int, task: Task, wins: Sequence[bool]) -> Group:
    """Returns a group of a task, with an episode of one turn for each of `wins`, which says whether it succeeds."""
    rng = np.random.default_rng(slot)
    played = [_ended(synthetic.trajectory(rng, Shape(turns=1)), float(won)) for won in wins]
    return Group(slot, task, tuple(Episode(f"{slot}-{n}", task, (t,)) for n, t in enumerate(played)))


def scores(group: Group) -> list[Score]:
    """Returns the scores of the group's trajectories by the rewards that the world gave."""
    return [Score(np.array([turn.reward for turn in t.turns], dtype=np.float32)) for t in group.trajectories]


def permuted(group: Group, order: Sequence[int]) -> Group:
    return replace(group, episodes=tuple(group.episodes[number] for number in order))


def saved(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a state as a checkpoint gives it back."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return checkpoint.save(folder, 0, lambda weights: None, {"part": state}).state()["part"]
        except RecordError as error:
            raise BrokenError(f"state() cannot be kept in a checkpoint: {error}") from error


def _worded(group: Group, rng: np.random.Generator) -> Group:
    return replace(group, episodes=tuple(_worded_episode(episode, rng) for episode in group.episodes))


def _worded_episode(episode: Episode, rng: np.random.Generator) -> Episode:
    return replace(episode, trajectories=tuple(_worded_trajectory(t, rng) for t in episode.trajectories))


def _worded_trajectory(trajectory: Trajectory, rng: np.random.Generator) -> Trajectory:
    worded = replace(trajectory, turns=tuple(_worded_turn(turn, rng) for turn in trajectory.turns))
    done = worded.turns and trajectory.ending is Ending.DONE
    return _ended(worded, float(rng.integers(2))) if done else worded


def _ended(trajectory: Trajectory, won: float) -> Trajectory:
    """Returns the trajectory with its last turn rewarded as a success (1) or a failure (0)."""
    *turns, last = trajectory.turns
    last = replace(last, reward=won, info={**last.info, "success": won})
    return replace(trajectory, turns=(*turns, last))


def _worded_turn(turn: Turn, rng: np.random.Generator) -> Turn:
    room = int(rng.integers(4))
    return replace(
        turn,
        message=Message(Role.ASSISTANT, f"go to room {room}"),
        observed=(Message(Role.USER, f"You are in room {room}."),),
        info={"malformed": float(rng.integers(2)), "progress": room / 4},
    )
