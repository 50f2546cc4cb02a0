"""Estimates of a mean or a rate with their 95% intervals, which know that plays of one task are not independent.

Standard errors are clustered by task (Miller 2024, arXiv:2411.00640, section 2.2) with t quantiles of tasks - 1
degrees of freedom. An interval is about tasks like these, not about this panel alone. Proportions use Wilson's score
interval (1927) with the effective number of plays, which is no whole number: `scipy.stats.binomtest` takes only those.
pass@k is Chen et al. 2021 (arXiv:2107.03374, eq. 1).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

Z = 1.959963984540054  # the two-sided 95% quantile of the normal distribution


class Estimate(NamedTuple):
    """A mean with its 95% interval; `n` counts the observations behind it (for pass@k: the tasks)."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"

    @property
    def percent(self) -> str:
        return f"{100 * self.mean:z.0f}% [{100 * self.low:z.0f}–{100 * self.high:z.0f}]"  # z: no "-0"


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


def t_quantile(freedom: int) -> float:
    """Returns the two-sided 95% quantile of Student's t, which is infinite without a degree of freedom."""
    if freedom < 1:
        return math.inf
    from scipy.special import stdtrit  # imported here, as it takes longer than all else that the command line needs

    return float(stdtrit(freedom, 0.975))


def wilson(successes: float, n: float) -> Estimate:
    """Returns a proportion with Wilson's score interval; `n` may be an effective number of plays."""
    if n <= 0:
        return NOTHING
    rate = successes / n
    centre = (rate + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(rate * (1 - rate) / n + Z**2 / (4 * n**2))
    return Estimate(rate, min(rate, max(0.0, centre - half)), max(rate, min(1.0, centre + half)), round(n))


def mean(values: Sequence[float], tasks: Sequence[Hashable] | None = None) -> Estimate:
    """Returns the mean with a t interval, clustered if `tasks` names each value's task; infinite for a single task."""
    x = np.asarray(values, dtype=np.float64)
    if not len(x):
        return NOTHING
    variance, clusters = _variance(x, tasks)
    centre = float(x.mean())
    half = t_quantile(clusters - 1) * math.sqrt(variance) if clusters > 1 else math.inf
    return Estimate(centre, centre - half, centre + half, len(x))


def proportion(outcomes: Sequence[bool] | Sequence[float], tasks: Sequence[Hashable] | None = None) -> Estimate:
    """Returns a success rate with Wilson's interval for the effective number of independent plays.

    That number (Korn and Graubard 1998) is n over the design effect, corrected for few tasks, and never above n.
    Where all outcomes agree the design effect is unknown, and every task counts once.
    """
    x = np.asarray(outcomes, dtype=np.float64)
    if not len(x):
        return NOTHING
    rate, n = float(x.mean()), len(x)
    variance, clusters = _variance(x, tasks)
    if clusters == n:
        effective = float(n)
    elif rate in (0.0, 1.0) or clusters == 1:
        effective = float(clusters)
    else:
        independent = min(n, rate * (1 - rate) / variance) if variance > 0 else n
        effective = max(1.0, independent * (Z / t_quantile(clusters - 1)) ** 2)
    interval = wilson(rate * effective, effective)
    return Estimate(rate, interval.low, interval.high, n)


def difference(first: Estimate, other: Estimate) -> Estimate:
    """Returns `other` minus `first`, two independent proportions, by their own intervals: the hybrid score interval of
    Newcombe 1998 (Statistics in Medicine 17, p. 873, method 10), which has a width at 0 and 1, too."""
    gained = other.mean - first.mean
    low = gained - math.hypot(other.mean - other.low, first.high - first.mean)
    high = gained + math.hypot(other.high - other.mean, first.mean - first.low)
    return Estimate(gained, low, high, first.n + other.n)


def pass_at_k(plays: int, successes: int, k: int) -> float:
    """Returns the chance that k plays, drawn without replacement, include a success (Chen et al. 2021, eq. 1)."""
    if not 1 <= k <= plays:
        raise ValueError(f"pass@{k} of {plays} plays: expected 1 <= k <= plays; play each task at least {k} times")
    return 1.0 - math.comb(plays - successes, k) / math.comb(plays, k)


def pass_rate(by_task: Sequence[tuple[int, int]], k: int, *, resamples: int = 1000, seed: int = 0) -> Estimate:
    """Returns the mean pass@k over tasks of (plays, successes), with a percentile bootstrap over tasks.

    Tasks with fewer than k plays are left out; `n` counts the others. Where all tasks agree, or there is only one, the
    bootstrap has no width, and Wilson's interval over the tasks is used instead.
    """
    values = np.array([pass_at_k(plays, successes, k) for plays, successes in by_task if plays >= k])
    if not len(values):
        return NOTHING
    if np.all(values == values[0]):
        return wilson(float(values.sum()), len(values))
    draws = np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return Estimate(float(values.mean()), float(low), float(high), len(values))


def _variance(x: np.ndarray[Any, Any], tasks: Sequence[Hashable] | None) -> tuple[float, int]:
    """Returns the variance of the mean of x (N,), clustered with the usual G / (G - 1), and how many clusters G are."""
    names = range(len(x)) if tasks is None else tasks
    sums: dict[Hashable, float] = defaultdict(float)
    for name, residual in zip(names, x - x.mean(), strict=True):
        sums[name] += float(residual)
    clusters = len(sums)
    if clusters < 2:
        return 0.0, clusters
    total = sum(value**2 for value in sums.values())
    return clusters / (clusters - 1) * total / len(x) ** 2, clusters
