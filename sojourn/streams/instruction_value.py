"""The chance of success that a trajectory's task had from the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from sojourn.config.fields import Range
from sojourn.protocols import PerTurn, StepContext, TurnStates
from sojourn.streams.learner import LearnedStream, layers, normalised


@dataclass(frozen=True, kw_only=True)
class InstructionValue(LearnedStream):
    """Chance that a trajectory ends with an outcome above 0, judged before its first action, for each sampled token, by
    a network on the policy's last hidden state there (instruction-level value function of DigiRL: Bai et al. 2024,
    arXiv:2406.11896, by its code).

    The network learns by cross-entropy, `epochs` passes over each step once the stream was read. In the authors' code
    it is one linear layer on a text encoder that is trained too, which reads the first observation; chances are kept
    within [0.0001, 0.9999], here as there.
    """

    hidden_size: Annotated[int, Range(1)] = 128
    lr: Annotated[float, Range(above=0)] = 1e-3
    epochs: Annotated[int, Range(1)] = 5
    seed: Annotated[int, Range(0)] = 0

    provides = "instruction_value"
    reference = False

    def build(self, size: int) -> torch.nn.Module:
        return layers(size, self.hidden_size, 1)

    async def __call__(self, context: StepContext) -> PerTurn:
        return [
            [
                tuple(np.full(len(turn.sample.tokens), chance, dtype=np.float32) for turn in trajectory.turns)
                for trajectory, chance in zip(group.trajectories, map(self._chance, states), strict=True)
            ]
            for group, states in zip(context.groups, await context.states(), strict=True)
        ]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """Learns from the step; `error` is the cross-entropy of the step's outcomes before the first update."""
        examples = [
            (states.before[0], float(score.result > 0))
            for group_states, scores in zip(await context.states(), context.scores, strict=True)
            for states, score in zip(group_states, scores, strict=True)
            if states.turns
        ]
        if not examples:
            return {}
        rows = torch.from_numpy(np.stack([row for row, _ in examples]))
        outcomes = torch.tensor([outcome for _, outcome in examples])
        cross_entropy = torch.nn.functional.binary_cross_entropy_with_logits
        errors = [self.learner.update(cross_entropy(self._logits(rows), outcomes)) for _ in range(self.epochs)]
        return {"error": errors[0]}

    def _logits(self, rows: torch.Tensor) -> torch.Tensor:
        return self.learner.net(rows.shape[-1])(normalised(rows))[:, 0]

    @torch.no_grad()
    def _chance(self, states: TurnStates) -> float:
        if not states.turns:
            return 0.0
        return float(torch.sigmoid(self._logits(torch.from_numpy(states.before[:1])))[0].clamp(1e-4, 1 - 1e-4))
