"""The loss of reward models that predict success."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from sojourn.config.fields import NONBLANK, Range
from sojourn.errors import ConfigError
from sojourn.losses.last_tokens import last_tokens, spread
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class BinaryCrossEntropy:
    """-y log sigmoid(v) - (1 - y) log(1 - sigmoid(v)) of the critic's value v, which thereby becomes the logit of a
    success, times `coef`: the mean over all labels y of the step.

    With `turns = "last"` each trajectory has one label, that of its last turn, and the critic becomes an outcome reward
    model (Cobbe et al. 2021, arXiv:2110.14168, train a verifier so); with "each" every turn has one, and it becomes a
    process reward model (Lightman et al. 2023, arXiv:2305.20050; with soft labels of Math-Shepherd: Wang et al. 2024,
    arXiv:2312.08935, eq. 2). A label is the number from 0 to 1 that `stream` has for the last token of the turn:
    `success` has the outcome for all turns, `turn_success` the fraction of the plays through a turn that succeeded. NaN
    is no label.

    v is read before that last token, which ends the turn: where nothing but the end of the turn is left to say. Cobbe
    et al. predict at every token, and add a loss of language modelling; here it is one token of each turn, and none.
    The reward `reward_model` scores episodes by what was learned. Use it with `estimator = {name = "constant"}`: the
    weights of tokens and advantages change nothing.
    """

    stream: Annotated[str, NONBLANK] = "success"
    turns: Literal["last", "each"] = "last"
    coef: Annotated[float, Range(above=0)] = 1.0

    unverified = "accounts of the papers were read, and code of others that trains outcome reward models so"
    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})
    own_mean = True

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"critic", self.stream})

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]:
        """Returns by what the loss of each token is multiplied, so that its weighted sum is the mean over the labels,
        and the sum of the weights, which metrics are divided by."""
        at = last_tokens(batch, batch.trajectory if self.turns == "last" else batch.turn)
        labels = batch.streams[self.stream][at]
        at = at[np.isfinite(labels)]
        if wrong := [label for label in labels.tolist() if label < 0 or label > 1]:
            raise ConfigError(f"the stream '{self.stream}' has the label {wrong[0]:g}: expected labels from 0 to 1")
        total = np.full(len(batch), batch.weight.sum(), dtype=np.float32)
        return {"labelled": spread(batch, at, 1 / max(len(at), 1)), "labelled_total": total}

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        share = batch.streams["labelled"]
        labels = torch.where(share > 0, batch.streams[self.stream], 0.0)
        losses = binary_cross_entropy_with_logits(out.values, labels, reduction="none")
        right = ((out.values > 0) == (labels > 0.5)).float()
        of_labels = share * batch.streams["labelled_total"]
        metrics = {"bce": of_labels * losses.detach(), "bce_accuracy": of_labels * right}
        return self.coef * share * losses, metrics
