"""Identity preference optimisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch

from sojourn.config.fields import Range
from sojourn.losses.preference import Sums, preference_columns, preference_loss
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class IPO:
    """(h+ - h- - 1 / (2 `tau`))^2, the mean over the pairs of the stream `pairs`, where h is the log-ratio of the
    policy to the reference model, as a mean over the sampled tokens of a trajectory (Azar et al. 2023,
    arXiv:2310.12036).

    TRL's code was compared (`loss_type = "ipo"`, where `tau` is called beta): that this is eq. 17, and that its authors
    mean h per token, is what it says of it.
    """

    tau: Annotated[float, Range(above=0)] = 0.1

    needs = frozenset({"pairs", "ref_logprobs"})
    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})
    own_mean = True
    chooses = True
    compares = True

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        return preference_columns("ipo", batch, logprobs, self.of_pairs, reference=True)

    def of_pairs(self, better: Sums, worse: Sums) -> torch.Tensor:
        gap = (better.policy - better.reference) / better.tokens - (worse.policy - worse.reference) / worse.tokens
        return (gap - 1 / (2 * self.tau)) ** 2

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return preference_loss("ipo", out, batch)
