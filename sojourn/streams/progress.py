"""Learned contributions of turns to the final reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch

from sojourn.config.fields import Range
from sojourn.protocols import PerTurn, StepContext, TurnStates
from sojourn.streams.learner import LearnedStream, layers, normalised
from sojourn.streams.trainer_passes import at_last_token


@dataclass(frozen=True, kw_only=True)
class Progress(LearnedStream):
    """Contribution c_t of each turn to the final reward, at the turn's last token, by a network on the policy's last
    hidden state there, which learns to make the contributions sum to the return, mean (sum_t c_t - R)^2 over
    trajectories (stepwise progress attribution of SPA-RL: Wang et al. 2025, arXiv:2505.20732).

    The network learns beside the policy, `epochs` passes over each step once the stream was read, so that its reported
    error is on trajectories that it has not seen. In the authors' code it is one linear layer on the language model's
    logits at the same tokens, and the whole model under it is trained too, once, before RL, from the weights of the
    warm-up. The estimator `process` adds this stream to the rewards; the reward of 0.5 for an action that could be
    executed, which the authors add, is left to the reward. Their published script for WebShop replaces the predicted
    contributions by the return minus the mean of the task's other trajectories; that is not done here.
    """

    hidden_size: Annotated[int, Range(1)] = 128
    lr: Annotated[float, Range(above=0)] = 1e-3
    epochs: Annotated[int, Range(1)] = 4
    seed: Annotated[int, Range(0)] = 0

    provides = "progress"
    reference = False

    def build(self, size: int) -> torch.nn.Module:
        return layers(size, self.hidden_size, 1)

    async def __call__(self, context: StepContext) -> PerTurn:
        return [
            at_last_token(
                group, [self._rewards(len(t.turns), s) for t, s in zip(group.trajectories, states, strict=True)]
            )
            for group, states in zip(context.groups, await context.states(), strict=True)
        ]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """Learns from the step; `error` is the mean squared error of the step's returns before the first update."""
        examples = [
            (torch.from_numpy(states.after), score.total)
            for group_states, scores in zip(await context.states(), context.scores, strict=True)
            for states, score in zip(group_states, scores, strict=True)
            if states.turns
        ]
        if not examples:
            return {}
        rows, returns = torch.cat([rows for rows, _ in examples]), torch.tensor([total for _, total in examples])
        lengths = torch.tensor([len(rows) for rows, _ in examples])
        owner = torch.repeat_interleave(torch.arange(len(examples)), lengths)
        errors = []
        for _ in range(self.epochs):
            sums = torch.zeros(len(examples)).index_add(0, owner, self._contributions(rows))
            errors.append(self.learner.update((sums - returns).square().mean()))
        return {"error": errors[0]}

    def _contributions(self, rows: torch.Tensor) -> torch.Tensor:
        return self.learner.net(rows.shape[-1])(normalised(rows))[:, 0]

    @torch.no_grad()
    def _rewards(self, turns: int, states: TurnStates) -> list[float]:
        """Returns the contribution of each turn, 0 for turns without tokens: (T,)."""
        out = [0.0] * turns
        if states.turns:
            for turn, value in zip(states.turns, self._contributions(torch.from_numpy(states.after)), strict=True):
                out[turn] = float(value)
        return out
