"""What losses of preferences share: the gradient of a function of whole trajectories as a weight for each token.

Such a loss is a mean over pairs of l(s+, s-), or over trajectories of l(s), where s is the log-probability of a
trajectory, that is of all its sampled tokens (or of a turn, where the pairs are pairs of turns). By the chain rule its
gradient is that of the sum over tokens of g log p, where g = dl/ds is the same for all tokens of a trajectory. So the
loss looks at the whole minibatch once, without gradient, and gives each token its g; how the minibatch is then divided
into parts changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from sojourn.errors import ConfigError
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray, IntArray


class Sums(NamedTuple):
    """Holds what is known of some trajectories, such as the preferred ones of all P pairs: the log-probabilities of
    policy and reference model, summed over the sampled tokens, and the number of these tokens: (P,) each."""

    policy: torch.Tensor
    reference: torch.Tensor
    tokens: torch.Tensor


PairLoss = Callable[[Sums, Sums], torch.Tensor]  # of the preferred and the other trajectories: (P,)
TrajectoryLoss = Callable[[Sums, torch.Tensor], torch.Tensor]  # of trajectories and the label of each: (S,)


def preference_columns(
    name: str, batch: Batch, logprobs: FloatArray, loss: PairLoss, *, reference: bool
) -> Mapping[str, FloatArray]:
    """Returns columns (N,) for the tokens of a minibatch: `name`, by which a token's log-probability is multiplied, and
    `name`_loss and `name`_accuracy, the loss of the token's pair, and whether the preferred trajectory is the likelier
    one. Without `reference`, the sums of the reference model are 0.
    """
    numbers = pair_numbers(batch)
    pairs = np.unique(np.abs(numbers[numbers != 0]))
    columns = {key: np.zeros(len(batch), dtype=np.float32) for key in (name, f"{name}_loss", f"{name}_accuracy")}
    if not len(pairs):
        return columns
    require_whole(numbers, pairs)
    known = batch.streams["ref_logprobs"] if reference else np.zeros(len(batch), dtype=np.float32)
    better, worse = (_sums(pairs, sign * numbers, logprobs, known) for sign in (1, -1))
    losses = loss(better, worse)
    losses.mean().backward()
    won = (better.policy > worse.policy).detach().numpy()
    for sign, side in ((1, better), (-1, worse)):
        assert side.policy.grad is not None
        at = np.flatnonzero(sign * numbers > 0)
        place = np.searchsorted(pairs, sign * numbers[at])
        columns[name][at] = side.policy.grad.numpy()[place] / batch.weight[at]
        columns[f"{name}_loss"][at], columns[f"{name}_accuracy"][at] = losses.detach().numpy()[place], won[place]
    return columns


def pair_numbers(batch: Batch) -> IntArray:
    """Returns the number of its pair for each token, below 0 in the one that is not preferred, and 0 for those in none:
    (N,). Raises `ConfigError` where plays share a turn and are in different pairs, as the turn has the mean of their
    numbers."""
    pairs = np.where(batch.weight > 0, batch.streams["pairs"], 0.0)
    numbers = np.rint(pairs)
    if (np.abs(pairs - numbers) > 1e-3).any():
        raise ConfigError(
            "plays that fork share a turn and are in different pairs, or one of them in none: a stream of pairs of "
            "trajectories has whole_trajectories = True, and one of pairs of turns the same number in all these plays"
        )
    return numbers.astype(np.int64)


def trajectory_columns(
    name: str, batch: Batch, logprobs: FloatArray, loss: TrajectoryLoss, labels: FloatArray
) -> Mapping[str, FloatArray]:
    """Returns columns (N,) for the tokens of a minibatch: `name`, by which a token's log-probability is multiplied, and
    `name`_loss, the loss of the token's trajectory. `labels` (N,) has the label of each token's trajectory; where it is
    NaN, the trajectory has none, and is not trained."""
    at = np.flatnonzero((batch.weight > 0) & np.isfinite(labels))
    columns = {key: np.zeros(len(batch), dtype=np.float32) for key in (name, f"{name}_loss")}
    if not len(at):
        return columns
    _, first, place = np.unique(batch.trajectory[at], return_index=True, return_inverse=True)

    def total(values: FloatArray) -> torch.Tensor:
        return torch.tensor(np.bincount(place, weights=values[at].astype(np.float64)))

    ones = np.ones(len(batch), dtype=np.float32)
    sums = Sums(total(logprobs).requires_grad_(), total(batch.streams["ref_logprobs"]), total(ones))
    losses = loss(sums, torch.tensor(labels[at][first], dtype=torch.float64))
    losses.mean().backward()
    assert sums.policy.grad is not None
    columns[name][at] = sums.policy.grad.numpy()[place] / batch.weight[at]
    columns[f"{name}_loss"][at] = losses.detach().numpy()[place]
    return columns


def preference_loss(
    name: str, out: PassOutput, batch: SelectedTokens, *, paired: bool = True
) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    """Returns the loss of each token whose sum has the gradient of a preference loss, and its metrics."""
    shown = (f"{name}_loss", f"{name}_accuracy") if paired else (f"{name}_loss",)
    return batch.streams[name] * out.logprobs, {key: batch.streams[key] for key in shown}


def _sums(pairs: IntArray, numbers: IntArray, policy: FloatArray, reference: FloatArray) -> Sums:
    """Returns the sums over the tokens of each of the pairs, which are sorted: (P,)."""
    at = np.flatnonzero(numbers > 0)
    place = np.searchsorted(pairs, numbers[at])

    def total(values: FloatArray) -> torch.Tensor:
        return torch.tensor(np.bincount(place, weights=values[at].astype(np.float64), minlength=len(pairs)))

    ones = np.ones(len(numbers), dtype=np.float32)
    return Sums(total(policy).requires_grad_(), total(reference), total(ones))


def require_whole(numbers: IntArray, pairs: IntArray) -> None:
    found = set(np.unique(numbers).tolist())
    if divided := [int(pair) for pair in pairs if not {int(pair), -int(pair)} <= found]:
        raise ConfigError(
            f"pair {divided[0]} is divided between two minibatches, or a trajectory of it has no tokens to train: a "
            "loss of preferences compares the trajectories of a step: set minibatches = 1"
        )
