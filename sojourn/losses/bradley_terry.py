"""The loss of reward models that learn from preferences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from sojourn.config.fields import Range
from sojourn.losses.last_tokens import last_tokens, mean_over_all, spread
from sojourn.losses.preference import pair_numbers, require_whole
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class BradleyTerry:
    """-log sigmoid(v+ - v-) of the critic's values v of the preferred and the other one of each pair of the stream
    `pairs`, times `coef`: the mean over all pairs of the step (Bradley and Terry 1952; Ouyang et al. 2022,
    arXiv:2203.02155, eq. 1). The critic becomes a reward model whose values say which is better, and no more: their
    level means nothing.

    With the stream `pairs`, trajectories of a group are compared by reward; with `turn_pairs`, answers to the same
    state. v is read before the last token, which ends the turn. The gradient is computed from the values that the
    stream `values` read at the beginning of the step, which are the present ones as a step is one update (other numbers
    of minibatches are refused). The reward `reward_model` scores episodes by what was learned, with `output = "value"`.
    Use it with `estimator = {name = "constant"}`: the weights of tokens and advantages change nothing.
    """

    coef: Annotated[float, Range(above=0)] = 1.0

    needs = frozenset({"critic", "pairs", "values"})
    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})
    own_mean = True
    compares = True

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]:
        """Returns by what the value of each token is multiplied, so that the weighted sum has the gradient of the mean
        over the pairs; that mean; and the fraction of pairs in which the preferred one has the higher value."""
        numbers = pair_numbers(batch)
        require_whole(numbers, np.unique(np.abs(numbers[numbers != 0])))
        worse = last_tokens(batch, -numbers, numbers < 0)
        better = last_tokens(batch, numbers, numbers > 0)  # both in the order of the pairs
        gap = (batch.streams["values"][better] - batch.streams["values"][worse]).astype(np.float64)  # (P,)
        pull = np.exp(-np.logaddexp(0, gap)) / max(len(gap), 1)  # sigmoid(-gap), the mean over pairs
        return {
            "bradley_terry": spread(batch, better, -pull) + spread(batch, worse, pull),
            "bradley_terry_loss": mean_over_all(batch, better, np.logaddexp(0, -gap)),
            "bradley_terry_accuracy": mean_over_all(batch, better, (gap > 0)),
        }

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        metrics = {name: batch.streams[name] for name in ("bradley_terry_loss", "bradley_terry_accuracy")}
        return self.coef * batch.streams["bradley_terry"] * out.values, metrics
