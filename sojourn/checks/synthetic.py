"""Makes synthetic groups for the suites: linear, forked and windowed trajectories, truncations, other seats, failures.

They hold random numbers, and no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from sojourn.checks.promise import BrokenError
from sojourn.streams.origins import origin_numbers
from sojourn.types import Ending, Episode, FloatArray, Group, Sample, Score, Stop, Task, Trajectory, Turn, Versions

REWARDS = (-1.0, -0.25, 0.0, 0.5, 1.0)  # exact in float32, also after the constants of the suites are added


@dataclass(frozen=True)
class Shape:
    """The shape of a trajectory: the parent of each turn (the previous turn by default), its ending, and the largest
    number of sampled tokens per turn."""

    turns: int = 3
    parents: tuple[int, ...] = ()
    ending: Ending = Ending.DONE
    tokens: int = 5


FORKED = Shape(parents=(-1, 0, 0, 1, 2))
WINDOWED = Shape(parents=(-1, -1, 1, -1))
FORKED_WINDOWS = Shape(parents=(-1, 0, 0, -1, 3, 3))
UNSTARTED = Shape(turns=0, ending=Ending.TOKENS)  # its first prompt used up the token budget


class SyntheticStep(NamedTuple):
    """The inputs of an estimator for one step."""

    groups: list[Group]
    scores: list[list[Score]]
    streams: Mapping[str, list[list[tuple[FloatArray, ...]]]]

    def with_scores(self, scores: Iterable[Iterable[Score]]) -> SyntheticStep:
        return self._replace(scores=[list(judged) for judged in scores])

    def with_constant(self, constant: float) -> SyntheticStep:
        """Returns the step with a constant added to every return, at the last turn."""
        return self.with_scores([_raised(score, constant) for score in judged] for judged in self.scores)

    def permuted(self, orders: Sequence[Sequence[int]]) -> SyntheticStep:
        """Returns the step with each group's episodes in another order; each must have one trainable trajectory."""
        return SyntheticStep(
            [replace(g, episodes=tuple(g.episodes[i] for i in o)) for g, o in zip(self.groups, orders, strict=True)],
            [[judged[i] for i in o] for judged, o in zip(self.scores, orders, strict=True)],
            {n: [[v[i] for i in o] for v, o in zip(vs, orders, strict=True)] for n, vs in self.streams.items()},
        )


class DeclaredStreams(Mapping[str, Any]):
    """The streams that a component declared; it records which are read, and raises `BrokenError` for any other."""

    def __init__(self, streams: Mapping[str, Any]) -> None:
        self._streams = dict(streams)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if name not in self._streams:
            raise BrokenError(f"it asks for the stream '{name}', which its needs do not name: a run would not have it")
        self.read.add(name)
        return self._streams[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)


def step(shapes: Sequence[Sequence[Shape]], needs: frozenset[str], seed: int = 0) -> SyntheticStep:
    """Returns a step with one group per list of shapes, one episode per shape, and random rewards."""
    rng = np.random.default_rng(seed)
    return step_of(
        [group(slot, [trajectory(rng, shape) for shape in some]) for slot, some in enumerate(shapes)], needs, rng
    )


def step_of(groups: list[Group], needs: frozenset[str], rng: np.random.Generator) -> SyntheticStep:
    """Returns a step of the groups with random scores and streams."""
    scores = [[_score(rng, t) for t in g.trajectories] for g in groups]
    return SyntheticStep(groups, scores, {name: _stream(name, groups) for name in sorted(needs)})


def trajectory(rng: np.random.Generator, shape: Shape, agent: str = "agent", trainable: bool = True) -> Trajectory:
    parents = shape.parents or range(-1, shape.turns - 1)
    return Trajectory(agent, tuple(_turn(rng, parent, shape) for parent in parents), shape.ending, trainable)


def group(slot: int, trajectories: Iterable[Trajectory]) -> Group:
    task = Task("made", {"number": slot}, slot, "train")
    return Group(slot, task, tuple(Episode(f"{slot}-{n}", task, (t,)) for n, t in enumerate(trajectories)))


def content(value: Any) -> Any:
    """Returns a comparable copy of everything that a value holds, to see whether the value was changed."""
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *(content(getattr(value, f.name)) for f in fields(value)))
    if isinstance(value, Mapping):
        return tuple((key, content(value[key])) for key in sorted(value))
    if isinstance(value, (list, tuple)):
        return tuple(map(content, value))
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    return value


def _turn(rng: np.random.Generator, parent: int, shape: Shape) -> Turn:
    tokens = rng.integers(0, 300, int(rng.integers(1, shape.tokens + 1)))
    logprobs = -rng.uniform(0.5, 5, len(tokens)).astype(np.float32)
    sample = Sample(tokens, logprobs, Versions(0, 0), Stop.END)
    context = rng.integers(0, 300, int(rng.integers(2, 6)))
    return Turn(parent, context, sample, None, state=f"state {rng.integers(3)}")


def _score(rng: np.random.Generator, t: Trajectory) -> Score:
    """Returns a random score: a small reward at some turns, and most of it at the end."""
    turns = rng.choice((0.0, 0.0, 0.25), len(t.turns)).astype(np.float32)
    turns[-1:] += np.float32(rng.choice(REWARDS))
    return Score(turns)


def _raised(score: Score, constant: float) -> Score:
    turns = score.turns.copy()
    turns[-1:] += np.float32(constant)
    return replace(score, turns=turns)


def _stream(name: str, groups: Sequence[Group]) -> list[list[tuple[FloatArray, ...]]]:
    """Returns random numbers of a plausible sign: negative for log-probabilities, positive for everything else."""
    rng, sign = np.random.default_rng(crc32(name.encode())), -1 if name.endswith("logprobs") else 1

    def column(turn: Turn) -> FloatArray:
        return (sign * rng.uniform(0.1, 1, len(turn.sample.tokens))).astype(np.float32)

    if name == "pairs":
        return _pairs(groups)
    if name == "origins":
        return origin_numbers(groups)
    return [[tuple(column(turn) for turn in t.turns) for t in g.trajectories] for g in groups]


def _pairs(groups: Sequence[Group]) -> list[list[tuple[FloatArray, ...]]]:
    """Returns the stream `pairs` of groups whose first two trajectories are a pair, where there are two with turns."""
    streams: list[list[tuple[FloatArray, ...]]] = []
    for number, group in enumerate(groups, 1):
        acting = [n for n, t in enumerate(group.trajectories) if t.turns][:2]
        signs = dict(zip(acting, (number, -number), strict=True)) if len(acting) == 2 else {}
        streams.append(
            [
                tuple(np.full(len(turn.sample.tokens), signs.get(n, 0), dtype=np.float32) for turn in t.turns)
                for n, t in enumerate(group.trajectories)
            ]
        )
    return streams
