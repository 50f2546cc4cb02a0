"""Packs forests of turns into sequences, and converts between values by turn and values along the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from sojourn.protocols import PerTurn, TurnSpan
from sojourn.types import Batch, FloatArray, Group, IntArray, Trajectory


class _Part(NamedTuple):
    """Consecutive tokens with their log-probabilities, and the values that all of them share."""

    tokens: IntArray
    logprobs: FloatArray
    sequence: int
    weight: float
    temperature: float
    trajectory: int
    turn: int


DTYPES = {name: np.float32 if name in ("logprobs", "weight", "temperature") else np.int64 for name in _Part._fields}


def paths(trajectory: Trajectory) -> list[list[int]]:
    """Returns the root-to-leaf paths of the turn forest, as turn numbers. Together they contain every turn."""
    parents = {turn.parent for turn in trajectory.turns}
    out: list[list[int]] = []
    for leaf in range(len(trajectory.turns)):
        if leaf in parents:
            continue
        path = [leaf]
        while (parent := trajectory.turns[path[-1]].parent) >= 0:
            path.append(parent)
        out.append(path[::-1])
    return out


def flatten(groups: Sequence[Group]) -> tuple[Batch, list[TurnSpan]]:
    """Returns a batch with one sequence for each root-to-leaf path, and the span of each turn in it. A turn that
    several paths share is trained in the first of them only.

    The tokens are those that were sampled, never re-encoded. Every token to be trained has weight 1, so that
    `Trainer.forward` scores it; `to_batch` replaces the weights, and the advantages, which are 0 here.
    """
    packer = _Packer()
    number = 0
    for g, group in enumerate(groups):
        for t, trajectory in enumerate(group.trajectories):
            trained: set[int] = set()
            for path in paths(trajectory):
                packer.add(trajectory, path, trained, (g, t), number)
            number += 1
    return packer.batch(), packer.spans


class _Packer:
    def __init__(self) -> None:
        self.spans: list[TurnSpan] = []
        self.parts: list[_Part] = []
        self.images: list[tuple[str, ...]] = []
        self.allowed: dict[int, IntArray] = {}
        self.length = 0
        self.turns = 0

    def add(
        self,
        trajectory: Trajectory,
        path: Sequence[int],
        trained: set[int],
        group_and_trajectory: tuple[int, int],
        number: int,
    ) -> None:
        sequence = len(self.images)
        for turn_number in path:
            turn = trajectory.turns[turn_number]
            sample, context = turn.sample, len(turn.context)
            self._append(_Part(turn.context, np.zeros(context, np.float32), sequence, 0.0, 1.0, number, -1))
            start = self.length
            train = 0.0 if turn_number in trained else 1.0
            temperature = sample.temperature or 1.0
            self._append(_Part(sample.tokens, sample.logprobs, sequence, train, temperature, number, self.turns))
            self.turns += 1
            if train:
                trained.add(turn_number)
                self.spans.append(TurnSpan(*group_and_trajectory, turn_number, start, self.length))
                for offset, ids in enumerate(turn.sample.allowed or ()):
                    if ids is not None:
                        self.allowed[start + offset] = ids
        self.images.append(tuple(image for turn_number in path for image in trajectory.turns[turn_number].images))

    def _append(self, part: _Part) -> None:
        self.parts.append(part)
        self.length += len(part.tokens)

    def batch(self) -> Batch:
        counts = [len(part.tokens) for part in self.parts]
        fields = zip(*self.parts, strict=True) if self.parts else [()] * len(DTYPES)
        columns = {}
        for (name, dtype), values in zip(DTYPES.items(), fields, strict=True):
            if name in ("tokens", "logprobs"):
                columns[name] = np.concatenate([np.zeros(0, dtype), *values]).astype(dtype, copy=False)
            else:
                columns[name] = np.repeat(np.array(values, dtype), counts)
        images = tuple(self.images) if any(self.images) else ()
        zeros = np.zeros(self.length, dtype=np.float32)
        return Batch(**cast(Any, columns), advantages=zeros, images=images, allowed=self.allowed)


def gather(values: Sequence[Sequence[Sequence[FloatArray]]], spans: Sequence[TurnSpan], length: int) -> FloatArray:
    """Returns values of sampled tokens, given by group, trajectory and turn, along the batch: (N,), 0 elsewhere."""
    out = np.zeros(length, dtype=np.float32)
    for span in spans:
        out[span.start : span.stop] = values[span.group][span.trajectory][span.turn]
    return out


def scatter(groups: Sequence[Group], values: FloatArray, spans: Sequence[TurnSpan]) -> PerTurn:
    """Inverts `gather`: returns the values of sampled tokens by group, trajectory and turn."""
    parts = {(p.group, p.trajectory, p.turn): values[p.start : p.stop] for p in spans}
    return [
        [tuple(parts[g, t, n] for n in range(len(trajectory.turns))) for t, trajectory in enumerate(group.trajectories)]
        for g, group in enumerate(groups)
    ]
