"""Predictions of a candidate's mean outcome, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sojourn.credit.relative import Values
from sojourn.intervals import Estimate
from sojourn.ope.fitted import fitted_values, resampled_means
from sojourn.ope.logged import LoggedEpisode

FEW = 30  # episodes' worth of weights, below which importance sampling says little
MEAN_WEIGHT = (0.75, 1.33)  # where the mean of the weights is near enough to 1
RESAMPLES = 1000
REFITS = 100  # of the model of values, which takes longer
METHODS = {  # by name, in words
    "recorded": "the mean of what was recorded",
    "is": "importance sampling",
    "wis": "weighted importance sampling",
    "pdis": "per-decision importance sampling",
    "wpdis": "weighted per-decision importance sampling",
    "fitted": "fitted evaluation",
    "dr": "doubly robust",
    "wdr": "weighted doubly robust",
}


class Prediction(NamedTuple):
    """The predicted outcome by method, from `episodes` recorded ones, and how far importance weights are to be trusted.

    `effective` says how many episodes the weights are worth. `mean_weight` is 1 but for chance; it is less where much
    of what the candidate would do was never recorded, even if the episodes that were have even weights.
    """

    estimates: dict[str, Estimate]
    effective: float
    mean_weight: float
    episodes: int

    @property
    def trusted(self) -> bool:
        """Returns whether the records show enough of what the candidate would do."""
        low, high = MEAN_WEIGHT
        return self.effective >= FEW and low <= self.mean_weight <= high


def improvements(predictions: Sequence[Prediction], method: str = "wdr") -> list[bool]:
    """Returns, for candidates in the order in which they were trained, which of them pass an offline gate: whose
    prediction is trusted, and higher than that of all before that passed, and than what was recorded.

    So Uni-O4 (Lei et al. 2023, arXiv:2311.03351, by the authors' code) decides when what is being trained takes the
    place of the policy that it improves on; there, the prediction is a fitted Q in roll-outs of a learned model of the
    world, and compared with that of the cloned policy.
    """
    passed, best = list[bool](), predictions[0].estimates["recorded"].mean if predictions else 0.0
    for prediction in predictions:
        passed.append(prediction.trusted and prediction.estimates[method].mean > best)
        best = prediction.estimates[method].mean if passed[-1] else best
    return passed


class _Terms(NamedTuple):
    """A sum over terms k of ratios of sums over episodes i: sum_k (sum_i above[i, k]) / (sum_i below[i, k])."""

    above: Values  # (n, K)
    below: Values  # (n, K)

    def of(self, counts: Values) -> Values:
        """Returns the sum where each episode counts so often, for each row of counts (B, n): (B,)."""
        below = counts @ self.below
        return ((counts @ self.above) / np.where(below > 0, below, 1.0)).sum(axis=1)


def predict(episodes: Sequence[LoggedEpisode], values: Sequence[Values] | None = None) -> Prediction:
    """Returns the candidate's mean outcome by each of `METHODS`, on tasks like those that were recorded.

    Importance sampling weighs an episode by the product of its turns' ratios, and per decision, the reward of each turn
    by the product until then (Precup, Sutton and Singh 2000, "Eligibility traces for off-policy policy evaluation");
    weighted, each sum is divided by the sum of its weights. The doubly robust estimate is the fitted value of the
    first state, and weighs only how far each turn then differs from what fitted values let expect (Jiang and Li 2016,
    arXiv:1511.03722; weighted: Thomas and Brunskill 2016, arXiv:1604.00923). Theirs subtracts Q(s, a), whose mean over
    actions must be V(s) exactly for the estimate to be unbiased; that of fitted values is not, and the actions of a
    language model cannot be enumerated, so V(s) is subtracted, with which it is unbiased for whatever values. All were
    written by accounts of the papers and an open implementation; there, an episode that has ended has no weight in
    later turns, whereas here it keeps its last. Nothing is discounted.

    Intervals are 95% percentile bootstraps over tasks. That of the fitted values has a model of its own for each
    resample, but not what a linear model cannot express.
    """
    fitted = fitted_values(episodes) if values is None else values
    rng = np.random.default_rng(0)
    tasks, owner = np.unique([episode.task for episode in episodes], return_inverse=True)
    of_tasks = rng.multinomial(len(tasks), np.full(len(tasks), 1 / len(tasks)), size=RESAMPLES)
    drawn = of_tasks[:, owner].astype(np.float64)
    once = np.ones((1, len(episodes)))
    estimates = {}
    for name, terms in _all_terms(episodes, fitted).items():
        again = resampled_means(episodes, drawn[:REFITS]) if name == "fitted" else terms.of(drawn)
        low, high = np.quantile(again, [0.025, 0.975])
        estimates[name] = Estimate(float(terms.of(once)[0]), float(low), float(high), len(episodes))
    weights = np.exp(_bounded(np.array([episode.log_ratios.sum() for episode in episodes])))
    effective = float(weights.sum() ** 2 / max(float((weights**2).sum()), 1e-300))
    return Prediction(estimates, effective, float(weights.mean()), len(episodes))


def _all_terms(episodes: Sequence[LoggedEpisode], fitted: Sequence[Values]) -> dict[str, _Terms]:
    length = max(len(episode.rewards) for episode in episodes)
    rewards = np.array([_padded(episode.rewards, length) for episode in episodes])  # (n, T)
    states = np.array([_padded(values, length) for values in fitted])
    summed = np.array([_padded(episode.log_ratios, length) for episode in episodes]).cumsum(axis=1)
    through = np.exp(_bounded(summed))  # the weight of a turn's action; an episode that has ended keeps its last
    before = np.concatenate([np.ones((len(episodes), 1)), through[:, :-1]], axis=1)
    whole, total, one = through[:, -1:], rewards.sum(axis=1, keepdims=True), np.ones((len(episodes), 1))
    ones = np.ones_like(rewards)
    errors = through * (rewards - states)
    return {
        "recorded": _Terms(total, one),
        "is": _Terms(whole * total, one),
        "wis": _Terms(whole * total, whole),
        "pdis": _Terms(through * rewards, ones),
        "wpdis": _Terms(through * rewards, through),
        "fitted": _Terms(states[:, :1], one),
        "dr": _Terms(errors + before * states, ones),
        "wdr": _Terms(np.hstack([errors, before * states]), np.hstack([through, before])),
    }


def _padded(values: Values, length: int) -> Values:
    return np.pad(values, (0, length - len(values)))


def _bounded(logs: Values) -> Values:
    """Returns logarithms of weights whose squares can be summed."""
    return np.clip(logs, -300, 300)
