"""Potential-based shaping by a learned potential of milestones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from sojourn.config.fields import NONBLANK, Range
from sojourn.protocols import PerTurn, StepContext, TurnStates
from sojourn.streams.learner import LearnedStream, layers, normalised
from sojourn.streams.trainer_passes import at_last_token
from sojourn.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class Milestones(LearnedStream):
    """Shaping reward discount P(s') - P(s) for each turn, at its last token, where the potential P is a network on the
    policy's last hidden states that learns how far along a state is (milestones of MiRA: Wang et al. 2026,
    arXiv:2603.19685; with the invariance of Ng, Harada and Russell 1999).

    The target of P is the fraction of milestones reached, which turns give as the number `info_key` of `Turn.info`,
    interpolated linearly between the turns at which it rises; after the last rise it stays. The interpolation needs
    hindsight, so it is only what P learns, and never a reward itself. P is 0 where the episode has ended. The source is
    accounts of the paper: from them it is that the paper's potential critic learns such a line and shapes the reward;
    its coefficients are not known.
    """

    info_key: Annotated[str, NONBLANK] = "progress"
    discount: Annotated[float, Range(0, 1)] = 1.0
    hidden_size: Annotated[int, Range(1)] = 128
    lr: Annotated[float, Range(above=0)] = 1e-3
    epochs: Annotated[int, Range(1)] = 4
    seed: Annotated[int, Range(0)] = 0

    provides = "milestones"
    unverified = "the paper's abstract and accounts of it were read, not its equations nor coefficients"
    reference = False

    def build(self, size: int) -> torch.nn.Module:
        return layers(size, self.hidden_size, 1)

    async def __call__(self, context: StepContext) -> PerTurn:
        return [
            at_last_token(group, [self._shaping(t, s) for t, s in zip(group.trajectories, states, strict=True)])
            for group, states in zip(context.groups, await context.states(), strict=True)
        ]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """Learns from the step; `error` is the mean squared error of P on its states before the first update."""
        examples = [
            (torch.from_numpy(states.before), torch.tensor(progress_before(trajectory, self.info_key))[states.turns])
            for group, group_states in zip(context.groups, await context.states(), strict=True)
            for trajectory, states in zip(group.trajectories, group_states, strict=True)
            if states.turns
        ]
        if not examples:
            return {}
        rows, targets = (torch.cat(column) for column in zip(*examples, strict=True))
        errors = [self.learner.update((self._potential(rows) - targets).square().mean()) for _ in range(self.epochs)]
        return {"error": errors[0]}

    def _potential(self, rows: torch.Tensor) -> torch.Tensor:
        return self.learner.net(rows.shape[-1])(normalised(rows))[:, 0]

    @torch.no_grad()
    def _shaping(self, trajectory: Trajectory, states: TurnStates) -> list[float]:
        """Returns the shaping reward of each turn, 0 for turns without tokens: (T,)."""
        out = [0.0] * len(trajectory.turns)
        if not states.turns:
            return out
        potential = self._potential(torch.from_numpy(np.concatenate([states.before, states.after[-1:]]))).numpy()
        potential[-1] *= trajectory.ending.truncated
        shaping = self.discount * potential[1:] - potential[:-1]
        for turn, reward in zip(states.turns, shaping, strict=True):
            out[turn] = float(reward)
        return out


def progress_before(trajectory: Trajectory, info_key: str) -> list[float]:
    """Returns how far along the state before each turn is, in hindsight: (T,)."""
    reached = np.maximum.accumulate([0.0, *(float(turn.info.get(info_key, 0.0)) for turn in trajectory.turns)])
    rises = [0, *(np.flatnonzero(np.diff(reached) > 0) + 1).tolist()]
    line = np.interp(np.arange(len(reached)), rises, reached[rises])
    return line[:-1].astype(np.float32).tolist()
