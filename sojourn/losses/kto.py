"""Kahneman-Tversky optimisation: trajectories that are desirable or not, without pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from sojourn.config.fields import Range
from sojourn.losses.preference import Sums, preference_loss, trajectory_columns
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class KTO:
    """w (1 - sigmoid(y `beta` (h - z))), the mean over trajectories, where h is the log-ratio of the policy to the
    reference model over a trajectory, z an estimate of their KL divergence, and y = 1 where the trajectory is
    desirable, -1 where it is not (Ethayarajh et al. 2024, arXiv:2402.01306).

    w is `desirable_weight` or `undesirable_weight`, the paper's lambda. y is the stream `desirable`; trajectories that
    are neither are not trained. z is the stream `reference_kl`, through which no gradient flows; it is of the weights
    before the step, also in minibatches after the first. The authors' code was compared (KTOTrainer of HALOs). Use it
    with `estimator = {name = "constant"}`, as the weights of tokens change nothing but the metrics.
    """

    beta: Annotated[float, Range(above=0)] = 0.1
    desirable_weight: Annotated[float, Range(0)] = 1.0
    undesirable_weight: Annotated[float, Range(0)] = 1.0

    needs = frozenset({"desirable", "ref_logprobs", "reference_kl"})
    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})
    own_mean = True
    chooses = True

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        labels = np.sign(batch.streams["desirable"])
        point = float(batch.streams["reference_kl"].max(initial=0.0))  # the same for all sampled tokens of a step

        def loss(sums: Sums, labels: torch.Tensor) -> torch.Tensor:
            return self.of_trajectories(sums, labels, point)

        return trajectory_columns("kto", batch, logprobs, loss, np.where(labels == 0, np.float32("nan"), labels))

    def of_trajectories(self, sums: Sums, labels: torch.Tensor, point: float) -> torch.Tensor:
        """Returns the loss of each trajectory (S,), whose labels are 1 or -1; `point` is z."""
        weights = torch.where(labels > 0, self.desirable_weight, self.undesirable_weight)
        return weights * (1 - torch.sigmoid(labels * self.beta * (sums.policy - sums.reference - point)))

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return preference_loss("kto", out, batch, paired=False)
