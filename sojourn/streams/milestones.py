"""Shaping by how far along the milestones of its task a trajectory looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from sojourn.config.registry import SOME, Range
from sojourn.protocols import PerTurn, StepContext, TurnStates
from sojourn.streams.learner import Learning, layers, scaled
from sojourn.streams.trainer_passes import at_last
from sojourn.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class Milestones(Learning):
    """discount P(s') - P(s) for each turn, at its last token, where P is a network on the policy's last hidden states
    that learns how far along a state is (milestones of MiRA: Wang et al. 2026, arXiv:2603.19685; with the invariance of
    Ng, Harada and Russell 1999).

    How far: the share of milestones reached, the number `by` that turns leave in `Turn.info`, on a straight line
    between the turns at which it rises; after the last rise it stays. Drawing the line takes hindsight, so it is what P
    learns, never itself a reward. P is 0 where the world has ended. The source is accounts of the paper: that its
    potential critic learns such a line, and shapes the reward, is from them; its coefficients are not known.
    """

    info_key: Annotated[str, SOME] = "progress"
    discount: Annotated[float, Range(0, 1)] = 1.0
    hidden_size: Annotated[int, Range(1)] = 128
    lr: Annotated[float, Range(above=0)] = 1e-3
    epochs: Annotated[int, Range(1)] = 4
    seed: Annotated[int, Range(0)] = 0

    provides: ClassVar[str] = "milestones"
    unverified: ClassVar[str] = "the paper's abstract and accounts of it were read, not its equations nor coefficients"
    reference: ClassVar[bool] = False

    def build(self, size: int) -> torch.nn.Module:
        return layers(size, self.hidden_size, 1)

    async def __call__(self, context: StepContext) -> PerTurn:
        return [
            at_last(group, [self._shaped(t, s) for t, s in zip(group.trajectories, some, strict=True)])
            for group, some in zip(context.groups, await context.states(), strict=True)
        ]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """`error` is the mean squared error of P on the step's states, before it has learnt from them."""
        pairs = [
            (torch.from_numpy(states.before), torch.tensor(progressed(trajectory, self.info_key))[states.turns])
            for group, some in zip(context.groups, await context.states(), strict=True)
            for trajectory, states in zip(group.trajectories, some, strict=True)
            if states.turns
        ]
        if not pairs:
            return {}
        rows, wanted = (torch.cat(column) for column in zip(*pairs, strict=True))
        errors = [self.learner.descend((self._far(rows) - wanted).square().mean()) for _ in range(self.epochs)]
        return {"error": errors[0]}

    def _far(self, rows: torch.Tensor) -> torch.Tensor:
        return self.learner.net(rows.shape[-1])(scaled(rows))[:, 0]

    @torch.no_grad()
    def _shaped(self, trajectory: Trajectory, states: TurnStates) -> list[float]:
        out = [0.0] * len(trajectory.turns)
        if not states.turns:
            return out
        far = self._far(torch.from_numpy(np.concatenate([states.before, states.after[-1:]]))).numpy()
        far[-1] *= trajectory.ending.truncated
        for turn, gain in zip(states.turns, self.discount * far[1:] - far[:-1], strict=True):
            out[turn] = float(gain)
        return out


def progressed(trajectory: Trajectory, by: str) -> list[float]:
    """How far along the state before each turn is, in hindsight: (T,)."""
    reached = np.maximum.accumulate([0.0, *(float(turn.info.get(by, 0.0)) for turn in trajectory.turns)])
    rises = [0, *(np.flatnonzero(np.diff(reached) > 0) + 1).tolist()]
    line = np.interp(np.arange(len(reached)), rises, reached[rises])
    return line[:-1].astype(np.float32).tolist()
