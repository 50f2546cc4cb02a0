"""Noise contrastive alignment: the trajectories of a group by their rewards, without pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch.nn.functional import logsigmoid

from sojourn.config.fields import Range
from sojourn.losses.preference import Sums, preference_loss, trajectory_columns
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class NCA:
    """-c log sigmoid(h) - log sigmoid(-h), the mean over trajectories, where h is `beta` times the log-ratio of the
    policy to the reference model over a trajectory, and c its stream `group_softmax` (Chen et al. 2024,
    arXiv:2402.05369).

    c is the number of trajectories of a group times the softmax of their rewards. Each trajectory is compared with the
    reference model, so the likelihood of the best one does not fall with that of the others. In groups of two, a small
    `alpha` of the stream makes it the authors' loss of pairs. Their codes for rewards and for pairs were compared
    (`loss_type = "NCA"`): all their groups have four answers; where groups differ in size, trajectories count alike
    here, not groups.
    """

    beta: Annotated[float, Range(above=0)] = 0.1

    needs = frozenset({"group_softmax", "ref_logprobs"})
    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})
    own_mean = True
    chooses = True

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        return trajectory_columns("nca", batch, logprobs, self.of_trajectories, batch.streams["group_softmax"])

    def of_trajectories(self, sums: Sums, labels: torch.Tensor) -> torch.Tensor:
        """Returns the loss of each trajectory (S,), whose labels are c."""
        reward = self.beta * (sums.policy - sums.reference)
        return -labels * logsigmoid(reward) - logsigmoid(-reward)

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return preference_loss("nca", out, batch, paired=False)
