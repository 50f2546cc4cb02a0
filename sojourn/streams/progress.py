"""How much of the final reward each turn earned, by a model that learns to say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from sojourn.config.registry import Range
from sojourn.protocols import PerTurn, StepContext, TurnStates
from sojourn.streams.learner import Learning, layers, scaled
from sojourn.streams.trainer_passes import at_last


@dataclass(frozen=True, kw_only=True)
class Progress(Learning):
    """The contribution c_t of each turn to the final reward, at its last token: from the policy's last hidden state
    there, by a network that learns to make their sum the reward, mean (sum_t c_t - R)^2 over trajectories (stepwise
    progress attribution of SPA-RL: Wang et al. 2025, arXiv:2505.20732).

    It learns beside the policy, `epochs` passes over each step once that step has been read, so that its error is one
    of trajectories that it has not seen. In the paper the whole model under it is trained, once, before RL, from the
    weights of the warm-up. What the estimator `process` adds to rewards; the paper also pays 0.5 for an action that
    could be executed, which is a reward's matter.
    """

    hidden_size: Annotated[int, Range(1)] = 128
    lr: Annotated[float, Range(above=0)] = 1e-3
    epochs: Annotated[int, Range(1)] = 4
    seed: Annotated[int, Range(0)] = 0

    provides: ClassVar[str] = "progress"
    reference: ClassVar[bool] = False

    def build(self, size: int) -> torch.nn.Module:
        return layers(size, self.hidden_size, 1)

    async def __call__(self, context: StepContext) -> PerTurn:
        return [
            at_last(group, [self._said(len(t.turns), s) for t, s in zip(group.trajectories, some, strict=True)])
            for group, some in zip(context.groups, await context.states(), strict=True)
        ]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """`error` is the mean squared error of the step's returns, before it has learnt from them."""
        pairs = [
            (torch.from_numpy(states.after), score.total)
            for some, judged in zip(await context.states(), context.scores, strict=True)
            for states, score in zip(some, judged, strict=True)
            if states.turns
        ]
        if not pairs:
            return {}
        rows, returns = torch.cat([rows for rows, _ in pairs]), torch.tensor([total for _, total in pairs])
        owner = torch.repeat_interleave(torch.arange(len(pairs)), torch.tensor([len(rows) for rows, _ in pairs]))
        errors = []
        for _ in range(self.epochs):
            sums = torch.zeros(len(pairs)).index_add(0, owner, self._contributions(rows))
            errors.append(self.learner.descend((sums - returns).square().mean()))
        return {"error": errors[0]}

    def _contributions(self, rows: torch.Tensor) -> torch.Tensor:
        return self.learner.net(rows.shape[-1])(scaled(rows))[:, 0]

    @torch.no_grad()
    def _said(self, turns: int, states: TurnStates) -> list[float]:
        out = [0.0] * turns
        if states.turns:
            for turn, value in zip(states.turns, self._contributions(torch.from_numpy(states.after)), strict=True):
                out[turn] = float(value)
        return out
