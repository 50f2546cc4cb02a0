"""Odds ratio preference optimisation: imitation and preference in one loss, without a reference model."""

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

LARGEST = -1e-6  # the largest mean log-probability whose odds are told apart from those of certainty


@dataclass(frozen=True, kw_only=True)
class ORPO:
    """-m+ - `odds_coef` log sigmoid(o+ - o-), the mean over the pairs of the stream `pairs`, where m is the mean
    log-probability of the sampled tokens of a trajectory, and o = m - log(1 - exp(m)) its log-odds (Hong et al. 2024,
    arXiv:2403.07691).

    The first term imitates the preferred trajectory; the second, whose weight is the paper's lambda, makes the odds of
    the other one smaller. The authors' code was compared (ORPOTrainer): it takes the mean of the first term over the
    tokens of all preferred answers, where here each pair counts alike, and imitates the prompts too unless told not to.
    """

    odds_coef: Annotated[float, Range(0)] = 0.1

    needs = frozenset({"pairs"})
    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})
    own_mean = True
    chooses = True
    compares = True

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        return preference_columns("orpo", batch, logprobs, self.of_pairs, reference=False)

    def of_pairs(self, better: Sums, worse: Sums) -> torch.Tensor:
        means = [side.policy / side.tokens for side in (better, worse)]
        odds = [mean - torch.log(-torch.expm1(mean.clamp(max=LARGEST))) for mean in means]
        return -means[0] - self.odds_coef * logsigmoid(odds[0] - odds[1])

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return preference_loss("orpo", out, batch)
