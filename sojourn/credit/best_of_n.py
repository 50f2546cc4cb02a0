"""Imitation of the best of several actions, by the word of a critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.credit.process import STREAM
from sojourn.types import Credit, FloatArray, Group, Score, Streams, Trajectory


@dataclass(frozen=True, kw_only=True)
class BestOfN:
    """Advantage 1 for the episode of a group with the highest sum of `stream`, where that is above `margin`, and 0 for
    all others (best-of-N policy extraction of Digi-Q: Bai et al. 2025, arXiv:2502.15760, by its code).

    It is for groups of the source `candidates`, which are actions at one state, and the loss `nll`: the policy learns
    the action that the critic likes best, if it is better than what is done there. Actions that could not be read are
    never chosen. The default stream gives Q - V by turn critics on frozen features; the authors' critics are larger,
    and they fine-tune the model whose features they read to tell what an action changes. Their thresholds are 0.1 and,
    in the web shop, 0.05.
    """

    stream: Annotated[str, STREAM] = "utterance_advantage"
    margin: float = 0.05

    min_group_size = 2

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({self.stream})

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        return [self._credit(group, stream) for group, stream in zip(groups, streams[self.stream], strict=True)]

    def _credit(self, group: Group, stream: Sequence[tuple[FloatArray, ...]]) -> list[Credit]:
        values = [_value(t, turns) for t, turns in zip(group.trajectories, stream, strict=True)]
        best = int(np.argmax(values)) if len(values) > 1 and max(values) > self.margin else -1
        return [Credit.uniform(t, float(number == best)) for number, t in enumerate(group.trajectories)]


def _value(trajectory: Trajectory, turns: Sequence[FloatArray]) -> float:
    """Returns the sum of the stream, or minus infinity where an action could not be read."""
    if any(turn.info.get("malformed", 0.0) > 0 for turn in trajectory.turns):
        return -np.inf
    return float(sum(turn.sum(dtype=np.float64) for turn in turns))
