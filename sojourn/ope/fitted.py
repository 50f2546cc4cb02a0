"""Fitted evaluation: what states are worth to the candidate, by regression on recorded turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sojourn.credit.relative import Values
from sojourn.ope.logged import LoggedEpisode
from sojourn.types import FloatArray, IntArray

MAX_FEATURES = 256  # more of them are projected to as many at random
RIDGE = 1e-3  # beside features of variance 1
MAX_LOG = 5.0  # of a weight
FOLDS = 2


class _Turns(NamedTuple):
    """The turns of several episodes, one after another: N turns, F features."""

    features: Values  # (N, F) of the state before each
    weights: Values  # (N,) how much likelier the candidate is to take all actions until then
    rewards: Values  # (N,)
    last: Values  # (N,) whether it is the last of its episode
    owner: IntArray  # (N,) the number of its episode


class _Model(NamedTuple):
    coefficients: Values  # (F,)
    low: float
    high: float

    def values(self, features: Values) -> Values:
        return np.clip(features @ self.coefficients, self.low, self.high)


def fitted_values(episodes: Sequence[LoggedEpisode]) -> list[Values]:
    """Returns what the state before each turn of each episode is worth to the candidate, (T,), linear in its features.

    V(s) is regressed on r + V(s'), anew in as many rounds as an episode has turns; values stay within the returns that
    were seen. This is fitted Q evaluation (Le et al. 2019, arXiv:1903.08738, by accounts of it) without Q, whose mean
    over the candidate's actions cannot be enumerated for a language model. Each turn weighs by how much likelier the
    candidate is to take its action and all before it, at most e^5 times: so the regression is on the states that the
    candidate would reach, as in "Fitted Q evaluation without Bellman completeness via stationary weighting"
    (arXiv:2512.23805, of which the abstract was read). An episode's values are by a model that was fitted on the
    episodes of other tasks.
    """
    tasks, owner = np.unique([episode.task for episode in episodes], return_inverse=True)
    folds = owner % FOLDS
    if len(tasks) == 1:
        folds = np.arange(len(episodes)) % FOLDS
    turns, values = _turns(episodes), list[list[Values]]()
    ends = np.cumsum([len(episode.rewards) for episode in episodes])[:-1]
    for fold in range(FOLDS):
        others = (folds != fold) if (folds != fold).any() else np.ones(len(folds))
        model = _fit(turns, others[turns.owner].astype(np.float64))
        values.append(np.split(model.values(turns.features), ends))
    return [values[fold][number] for number, fold in enumerate(folds)]


def resampled_means(episodes: Sequence[LoggedEpisode], counts: Values) -> Values:
    """Returns the mean value of the episodes' first states, by a model that is fitted anew where each episode counts
    so often, for each row of counts (B, n): (B,)."""
    turns = _turns(episodes)
    first = np.append(True, turns.last[:-1])
    means = []
    for row in counts:
        values = _fit(turns, row[turns.owner]).values(turns.features[first])
        means.append(float(row @ values / max(row.sum(), 1e-12)))
    return np.array(means)


def _fit(turns: _Turns, counts: Values) -> _Model:
    """Returns the model of the turns, where each counts so often: (N,)."""
    returns = np.bincount(turns.owner, turns.rewards)
    weights = counts * turns.weights
    weighted = turns.features * (weights / max(float(weights.sum()), 1e-12))[:, None]
    inner = weighted.T @ turns.features + RIDGE * np.eye(turns.features.shape[1])
    solver = np.linalg.solve(inner, weighted.T).astype(np.float64)  # (F, N)
    model = _Model(np.zeros(len(inner)), min(float(returns.min()), 0.0), max(float(returns.max()), 0.0))
    for _ in range(int(np.bincount(turns.owner).max())):
        following = np.append(model.values(turns.features)[1:], 0.0)
        model = model._replace(coefficients=solver @ (turns.rewards + np.where(turns.last, 0.0, following)))
    return model


def _turns(episodes: Sequence[LoggedEpisode]) -> _Turns:
    lengths = [len(episode.rewards) for episode in episodes]
    return _Turns(
        np.concatenate([_features(episode.states) for episode in episodes]),
        np.concatenate([np.exp(np.minimum(episode.log_ratios.cumsum(), MAX_LOG)) for episode in episodes]),
        np.concatenate([episode.rewards for episode in episodes]),
        np.concatenate([np.arange(length) == length - 1 for length in lengths]),
        np.repeat(np.arange(len(episodes)), lengths),
    )


def _features(states: FloatArray) -> Values:
    """Returns hidden states normalised to mean 0 and variance 1, with their turn's number and a constant: (T, F)."""
    rows = states.astype(np.float64)
    rows = (rows - rows.mean(axis=1, keepdims=True)) / (rows.std(axis=1, keepdims=True) + 1e-6)
    size = rows.shape[1]
    if size > MAX_FEATURES:
        rows = rows @ np.random.default_rng(0).normal(0, 1 / np.sqrt(size), (size, MAX_FEATURES))
    number = np.arange(len(rows), dtype=np.float64)[:, None]
    return np.concatenate([rows, number / 10, np.ones_like(number)], axis=1)
