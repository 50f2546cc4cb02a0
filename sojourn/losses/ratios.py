"""What losses share that use the ratio of the policy's probability to the sampler's."""

from __future__ import annotations

import torch

from sojourn.protocols import PassOutput, SelectedTokens


def log_ratio(out: PassOutput, batch: SelectedTokens) -> torch.Tensor:
    """Returns log r per token, where r is the policy's probability over the sampler's: (n,), with gradient."""
    return out.logprobs - batch.logprobs


def sampler_kl(log_r: torch.Tensor) -> torch.Tensor:
    """Returns the k3 estimate of KL(sampler || policy) from log-ratios, for metrics: (n,), without gradient."""
    log_r = log_r.detach()
    return log_r.exp() - 1 - log_r


def mean_by(values: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Returns for each token the mean of the values with the same number, such as its turn: (n,), with gradient."""
    count = int(numbers.max()) + 1 if len(numbers) else 0
    zeros = values.new_zeros(count)
    return (zeros.index_add(0, numbers, values) / zeros.index_add(0, numbers, torch.ones_like(values)))[numbers]
