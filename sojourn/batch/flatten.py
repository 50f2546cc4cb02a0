"""Packs forests of turns into sequences, and converts between values by turn and values along the batch."""

from __future__ import annotations

from collections import defaultdict
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
    several paths share, or several trajectories as plays branched after it, is trained in the first of them only.

    The tokens are those that were sampled, never re-encoded. Every token to be trained has weight 1, so that
    `Trainer.forward` scores it; `to_batch` replaces the weights, and the advantages, which are 0 here.
    """
    packer = _Packer()
    number = 0
    for g, group in enumerate(groups):
        for t, (trajectory, holders) in enumerate(zip(group.trajectories, group.holders, strict=True)):
            for path in paths(trajectory):
                packer.add(trajectory, path, holders, (g, t), number)
            number += 1
            packer.turns += len(trajectory.turns)
    return packer.batch(), list(packer.spans.values())


class _Packer:
    def __init__(self) -> None:
        self.spans: dict[tuple[int, int, int], TurnSpan] = {}  # by group, trajectory and turn
        self.parts: list[_Part] = []
        self.images: list[tuple[str, ...]] = []
        self.allowed: dict[int, IntArray] = {}
        self.length = 0
        self.turns = 0  # of the trajectories before

    def add(
        self,
        trajectory: Trajectory,
        path: Sequence[int],
        holders: Sequence[int],
        group_and_trajectory: tuple[int, int],
        number: int,
    ) -> None:
        sequence, (group, at) = len(self.images), group_and_trajectory
        for turn_number in path:
            turn = trajectory.turns[turn_number]
            sample, context = turn.sample, len(turn.context)
            self._append(_Part(turn.context, np.zeros(context, np.float32), sequence, 0.0, 1.0, number, -1))
            start, held = self.length, (group, holders[turn_number], turn_number)
            train = 0.0 if held in self.spans else 1.0
            temperature = sample.temperature or 1.0
            turn_id = self.turns + turn_number
            self._append(_Part(sample.tokens, sample.logprobs, sequence, train, temperature, number, turn_id))
            if train:
                self.spans[held] = TurnSpan(*held, start, self.length)
                for offset, ids in enumerate(turn.sample.allowed or ()):
                    if ids is not None:
                        self.allowed[start + offset] = ids
            own = group, at, turn_number
            self.spans.setdefault(own, TurnSpan(*own, self.spans[held].start, self.spans[held].stop))
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


Values = Sequence[Sequence[Sequence[FloatArray]]]  # of sampled tokens, by group, trajectory and turn


def gather(values: Values, spans: Sequence[TurnSpan], length: int, weights: Values | None = None) -> FloatArray:
    """Returns values of sampled tokens along the batch: (N,), 0 elsewhere. Of a turn that several trajectories share it
    is the mean of theirs, by `weights` if given; those that are NaN are left out, where not all are."""
    out = np.zeros(length, dtype=np.float32)
    for (start, stop), same in _by_place(spans).items():
        of_place = [values[group][trajectory][turn] for group, trajectory, turn in same]
        by = None if weights is None else [weights[group][trajectory][turn] for group, trajectory, turn in same]
        out[start:stop] = of_place[0] if len(same) == 1 else np.average(of_place, axis=0, weights=by)
        if len(same) > 1 and np.isnan(out[start:stop]).any():
            out[start:stop] = np.ma.filled(np.ma.average(np.ma.masked_invalid(of_place), 0, by), np.nan)
    return out


def add_up(values: Values, spans: Sequence[TurnSpan], length: int) -> FloatArray:
    """Returns values of sampled tokens along the batch, those of a shared turn added up: (N,), 0 elsewhere."""
    out = np.zeros(length, dtype=np.float32)
    for span in spans:
        out[span.start : span.stop] += values[span.group][span.trajectory][span.turn]
    return out


def _by_place(spans: Sequence[TurnSpan]) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    """Returns the turns, by group, trajectory and turn, at each place of the batch: several where they share it."""
    found = defaultdict[tuple[int, int], list[tuple[int, int, int]]](list)
    for span in spans:
        found[span.start, span.stop].append((span.group, span.trajectory, span.turn))
    return found


def scatter(groups: Sequence[Group], values: FloatArray, spans: Sequence[TurnSpan]) -> PerTurn:
    """Inverts `gather`: returns the values of sampled tokens by group, trajectory and turn."""
    parts = {(p.group, p.trajectory, p.turn): values[p.start : p.stop] for p in spans}
    return [
        [tuple(parts[g, t, n] for n in range(len(trajectory.turns))) for t, trajectory in enumerate(group.trajectories)]
        for g, group in enumerate(groups)
    ]
