"""Simple preference optimisation, without a reference model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch.nn.functional import logsigmoid

from sojourn.config.fields import Range
from sojourn.losses.preference import Sums, preference_columns, preference_loss
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class SimPO:
    """-log sigmoid(`beta` (m+ - m-) - `gamma`), the mean over the pairs of the stream `pairs`, where m is the mean
    log-probability of the sampled tokens of a trajectory (Meng et al. 2024, arXiv:2405.14734): no reference model is
    asked, and long trajectories count as much as short ones.

    The code of TRL's CPO trainer was compared (`loss_type = "simpo"`, whose `simpo_gamma` is `gamma`).
    """

    beta: Annotated[float, Range(above=0)] = 2.0
    gamma: Annotated[float, Range(0)] = 0.5

    needs = frozenset({"pairs"})
    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})
    own_mean = True
    chooses = True
    compares = True

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        return preference_columns("simpo", batch, logprobs, self.of_pairs, reference=False)

    def of_pairs(self, better: Sums, worse: Sums) -> torch.Tensor:
        gap = better.policy / better.tokens - worse.policy / worse.tokens
        return -logsigmoid(self.beta * gap - self.gamma)

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return preference_loss("simpo", out, batch)
