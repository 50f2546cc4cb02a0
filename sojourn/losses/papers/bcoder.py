"""The temporal-difference error of a policy whose logits are Q-values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch

from sojourn.config.fields import Range
from sojourn.protocols import PassOutput, SelectedTokens


@dataclass(frozen=True, kw_only=True)
class BCoder:
    """(Q - target)^2 per token, where Q = log p - max log p + V with the critic's V, plus, where there is credit,
    `advantage_coef` times |A| with A = Q - V and `likelihood_coef` times -log p (B-Coder: Yu et al. 2023,
    arXiv:2310.03173, eq. 1, 8 and 15-17, with the weights of appendix H).

    The policy is the softmax of Q (the paper's alpha is 1), so it follows what Q learns: there is no policy gradient
    and no ratio. The paper averages the error over a program's tokens and sums the other two terms; here all three are
    averaged alike. The critic is trained together with the policy, where the paper trains one before, freezes it, and
    adds another that begins at 0: an earlier stage of the loss `value` alone comes near that.
    """

    advantage_coef: Annotated[float, Range(0)] = 0.1
    likelihood_coef: Annotated[float, Range(0)] = 0.5
    coef: Annotated[float, Range(0)] = 1.0

    needs = frozenset({"critic", "top_logprob", "targets"})
    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        gain = out.logprobs - out.columns["top_logprob"]
        targets = batch.streams["targets"]
        asked = torch.isfinite(targets)
        error = (gain + out.values - torch.where(asked, targets, 0.0)).square() * asked
        own = self.advantage_coef * gain.abs() - self.likelihood_coef * out.logprobs
        metrics = {"q_error": error.detach(), "value": out.values.detach()}
        return self.coef * (error + batch.advantages * own), metrics
