"""Direct preference optimisation."""

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
class DPO:
    """-log sigmoid(`beta` (h+ - h-)), the mean over the pairs of the stream `pairs`, where h is the log-ratio of the
    policy to the reference model over a whole trajectory (Rafailov et al. 2023, arXiv:2305.18290).

    A trajectory of several turns counts by all its sampled tokens; what the world said is not among them. TRL's code
    was compared (`loss_type = "sigmoid"`). Over recorded groups it is the offline method, over live ones the online
    one, whose pairs are those of each group. Use it with `estimator = {name = "constant"}`: the weights of tokens
    change nothing but the metrics, as the loss is divided by them again.
    """

    beta: Annotated[float, Range(above=0)] = 0.1

    needs = frozenset({"pairs", "ref_logprobs"})
    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})
    own_mean = True
    chooses = True
    compares = True

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        return preference_columns("dpo", batch, logprobs, self.of_pairs, reference=True)

    def of_pairs(self, better: Sums, worse: Sums) -> torch.Tensor:
        return -logsigmoid(self.beta * ((better.policy - better.reference) - (worse.policy - worse.reference)))

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return preference_loss("dpo", out, batch)
