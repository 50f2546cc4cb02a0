"""The squared difference of a turn's log-ratio to the reference and its advantage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch

from sojourn.config.fields import Range
from sojourn.protocols import PassOutput, SelectedTokens


@dataclass(frozen=True, kw_only=True)
class WebRL:
    """(`beta` d - A)^2, where d is the sum over the tokens of a turn of log p - log p_reference, and A the advantage
    (KL-constrained update of WebRL: Qi et al. 2024, arXiv:2411.02337, by its code).

    The best policy under a penalty of `beta` times the KL to the reference has `beta` d = A, up to a constant for each
    state. Where the policy still is the reference, the gradient is -2 `beta` A times that of the turn's
    log-probability; a turn whose log-ratio has reached A / `beta` is left where it is, and beyond that comes back. The
    sampler's log-probabilities are not needed, so that old and recorded turns train alike. It is meant for
    `aggregate.by = "turn"`, by which turns count alike.

    With `positive_only`, turns whose advantage is not above 0 are left out, as in the code; its A is 1 for all others.
    There the loss is smooth L1 over `beta`, which is 5 for turns that the reference finds likely, and small enough that
    `beta` d never passes A; and d is divided by the tokens of the batch.
    """

    beta: Annotated[float, Range(above=0)] = 1.0
    positive_only: bool = False
    coef: Annotated[float, Range(0)] = 1.0

    needs = frozenset({"ref_logprobs"})
    valid_for = frozenset({"lag", "updates", "unsampled"})

    @property
    def zero_at_zero_advantage(self) -> bool:
        return self.positive_only

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        log_r = _sum_by(out.logprobs - batch.streams["ref_logprobs"], batch.turn)
        loss = (self.beta * log_r - batch.advantages).square()
        if self.positive_only:
            loss = loss * (batch.advantages > 0)
        return self.coef * loss, {"turn_log_ratio": log_r.detach(), "regression_error": loss.detach()}


def _sum_by(values: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Returns for each token the sum of the values with the same number, such as its turn: (n,), with gradient."""
    count = int(numbers.max()) + 1 if len(numbers) else 0
    return values.new_zeros(count).index_add(0, numbers, values)[numbers]
