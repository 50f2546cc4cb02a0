"""What losses have in common that compare the policy with the sampler."""

from __future__ import annotations

import torch

from sojourn.protocols import Output, Selected


def log_ratio(out: Output, batch: Selected) -> torch.Tensor:
    """The logarithm of the policy's probability over the sampler's: (n,), with gradient."""
    return out.logprobs - batch.logprobs


def sampler_kl(gap: torch.Tensor) -> torch.Tensor:
    """The k3 estimate of KL(sampler || policy) from log-ratios, for metrics: (n,), without gradient."""
    gap = gap.detach()
    return gap.exp() - 1 - gap


def mean_by(values: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Each value replaced by the mean of those of its number: (n,), with gradient."""
    count = int(numbers.max()) + 1 if len(numbers) else 0
    zeros = values.new_zeros(count)
    return (zeros.index_add(0, numbers, values) / zeros.index_add(0, numbers, torch.ones_like(values)))[numbers]
