"""Losses that train reward models: their values and gradients by their equations, however tokens are averaged."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import exp, log, nan
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made import group, score, trajectory

from sojourn.backends.torch.trainer.pass_io import select_tokens
from sojourn.batch import Aggregate, choose, to_batch
from sojourn.errors import ConfigError
from sojourn.losses.binary_cross_entropy import BinaryCrossEntropy
from sojourn.losses.bradley_terry import BradleyTerry
from sojourn.losses.of_origin import OfOrigin
from sojourn.protocols import PassOutput
from sojourn.streams.origins import origin_numbers
from sojourn.streams.pairs import Pairs
from sojourn.streams.success import Success
from sojourn.types import Credit

REWARDS = ([1.0, 0.0, 1.0], [0.0, 0.0, 1.0])
AVERAGES = ("token", "sequence", "turn", "constant")
FOREST = [-1, 0, 0, -1]  # a trajectory whose context was rewritten: three paths


def played(parents=None):
    rng = np.random.default_rng(3)
    groups = [group([trajectory(rng, 4, parents) for _ in rewards], slot) for slot, rewards in enumerate(REWARDS)]
    scores = [
        [score(t, reward) for t, reward in zip(g.trajectories, rewards, strict=True)]
        for g, rewards in zip(groups, REWARDS, strict=True)
    ]
    return groups, scores


def numbered(groups, number):
    """A stream of `number(g, t, n)` for all tokens of turn n of trajectory t of group g."""
    return [
        [
            tuple(
                np.full(len(turn.sample.tokens), number(g, t, n), dtype=np.float32) for n, turn in enumerate(one.turns)
            )
            for t, one in enumerate(group.trajectories)
        ]
        for g, group in enumerate(groups)
    ]


def drawn(groups, seed=0):
    rng = np.random.default_rng(seed)
    return [
        [tuple(rng.normal(size=len(turn.sample.tokens)).astype(np.float32) for turn in t.turns) for t in g.trajectories]
        for g in groups
    ]


def passed(loss, groups, streams, by):
    """Returns the weighted sum of a loss, its gradient by the values, as a stream, and its weighted mean metrics."""
    credit = [[Credit.uniform(t, 0.0) for t in g.trajectories] for g in groups]
    everything = {**streams, "places": numbered(groups, lambda g, t, n: 100 * g + 10 * t + n)}
    batch = to_batch(groups, credit, everything, aggregate=Aggregate(by=by), losses=[loss])
    where = np.flatnonzero(batch.weight)
    chosen = select_tokens(batch, where)
    values = chosen.streams["values"].clone().requires_grad_()
    per_token, metrics = loss(PassOutput(torch.zeros(len(where)), torch.zeros(len(where)), values), chosen)
    total = (per_token * chosen.weight).sum()
    [gradient] = torch.autograd.grad(total, values)
    means = {name: float((v * chosen.weight).sum() / chosen.weight.sum()) for name, v in metrics.items()}
    by_place = {}
    for place, value in zip(chosen.streams["places"].tolist(), gradient.tolist(), strict=True):
        by_place.setdefault(int(place), []).append(value)
    return float(total.detach()), by_place, means


def sigmoid(value):
    return 1 / (1 + exp(-value))


def bce(value, label):
    return -label * log(sigmoid(value)) - (1 - label) * log(1 - sigmoid(value))


def numeric(equation, values, place, step=1e-5):
    """Returns the derivative of an equation of `values`, by place, by one of them."""
    up, down = ({**values, place: values[place] + sign * step} for sign in (1, -1))
    return (equation(up) - equation(down)) / (2 * step)


def ends(groups, stream):
    """Returns the value of a stream at the last token of each turn, by place."""
    return {
        100 * g + 10 * t + n: float(turn[-1])
        for g, of_group in enumerate(stream)
        for t, turns in enumerate(of_group)
        for n, turn in enumerate(turns)
    }


def require_gradient(equation, at, found):
    """Requires the gradient of the equation at the last token of each of its places, and none anywhere else."""
    for place, gradients in found.items():
        assert gradients[:-1] == [0] * (len(gradients) - 1), place
        assert gradients[-1] == pytest.approx(numeric(equation, at, place), abs=1e-6), place


@pytest.mark.parametrize("parents", [None, FOREST])
@pytest.mark.parametrize("by", AVERAGES)
def test_an_outcome_is_the_cross_entropy_at_the_last_turn_of_each_trajectory(by, parents):
    groups, _ = played(parents)
    labels = [[float(reward > 0) for reward in rewards] for rewards in REWARDS]
    streams = {"values": drawn(groups), "success": numbered(groups, lambda g, t, n: labels[g][t])}

    def equation(at):
        return float(np.mean([bce(at[100 * g + 10 * t + 3], labels[g][t]) for g in range(2) for t in range(3)]))

    at = ends(groups, streams["values"])
    total, gradient, metrics = passed(BinaryCrossEntropy(), groups, streams, by)
    assert total == pytest.approx(equation(at), rel=1e-5)
    assert metrics["bce"] == pytest.approx(equation(at), rel=1e-5)
    right = [(at[100 * g + 10 * t + 3] > 0) == (labels[g][t] > 0) for g in range(2) for t in range(3)]
    assert metrics["bce_accuracy"] == pytest.approx(np.mean(right))
    require_gradient(equation, at, gradient)
    assert passed(BinaryCrossEntropy(coef=0.5), groups, streams, by)[0] == pytest.approx(total / 2)


@pytest.mark.parametrize("loss", [BinaryCrossEntropy(), OfOrigin(base=BinaryCrossEntropy(), mean="origins")])
@pytest.mark.parametrize("by", AVERAGES)
async def test_each_minibatch_is_the_mean_over_its_labels_however_many_tokens_it_has(by, loss):
    """Else that of a short trajectory would count for many times as much as that of a long one."""
    rng = np.random.default_rng(0)
    groups = [group([trajectory(rng, turns) for turns in (9, 1)])]
    credit = [[Credit.uniform(t, 1.0) for t in groups[0].trajectories]]
    streams = {"success": numbered(groups, lambda g, t, n: float(t)), "origins": origin_numbers(groups)}
    batch = to_batch(groups, credit, streams, aggregate=Aggregate(by=by), losses=[loss])
    for part in batch.minibatches(2, constant=by == "constant"):
        chosen = await choose(part, [loss], SimpleNamespace())
        where = np.flatnonzero(chosen.weight)
        zeros = torch.zeros(len(where))
        per_token, _ = loss(PassOutput(zeros, zeros, zeros), select_tokens(chosen, where))
        assert float((per_token * torch.tensor(chosen.weight[where])).sum()) == pytest.approx(log(2))


@pytest.mark.parametrize("by", AVERAGES)
def test_each_turn_with_a_label_counts_alike(by):
    groups, _ = played()
    rng = np.random.default_rng(7)
    labels = {100 * g + 10 * t + n: float(rng.uniform()) for g in range(2) for t in range(3) for n in range(4)}
    labels |= {12: nan, 13: nan, 110: nan}
    streams = {"values": drawn(groups), "turn_success": numbered(groups, lambda g, t, n: labels[100 * g + 10 * t + n])}

    def equation(at):
        return float(np.mean([bce(at[place], label) for place, label in labels.items() if label == label]))

    at = ends(groups, streams["values"])
    total, gradient, metrics = passed(BinaryCrossEntropy(stream="turn_success", turns="each"), groups, streams, by)
    assert (total, metrics["bce"]) == (pytest.approx(equation(at), rel=1e-5), pytest.approx(equation(at), rel=1e-5))
    require_gradient(equation, at, gradient)


def test_a_step_without_labels_has_no_loss_and_a_label_that_is_no_probability_is_refused():
    groups, _ = played()
    streams = {"values": drawn(groups), "success": numbered(groups, lambda g, t, n: nan)}
    total, gradient, _ = passed(BinaryCrossEntropy(), groups, streams, "token")
    assert total == 0
    assert not np.any([value for values in gradient.values() for value in values])
    streams["success"] = numbered(groups, lambda g, t, n: 1.5 * (n == 3))
    with pytest.raises(ConfigError, match=r"'success' has the label 1\.5: expected labels from 0 to 1"):
        passed(BinaryCrossEntropy(), groups, streams, "token")


def test_an_episode_that_failed_has_no_label():
    """It is no 0: with and without it, the loss is the same."""
    rng = np.random.default_rng(0)
    whole = group([trajectory(rng) for _ in range(3)])
    failed = replace(whole, episodes=(*whole.episodes[:2], replace(whole.episodes[2], error="the world is down")))
    without = replace(whole, episodes=whole.episodes[:2])

    def loss_of(one):
        context = SimpleNamespace(groups=[one], scores=[[]])
        values = [drawn([whole])[0][: len(one.trajectories)]]
        streams = {"values": values, "success": asyncio.run(Success()(context))}
        return passed(BinaryCrossEntropy(), [one], streams, "sequence")

    assert loss_of(failed) == loss_of(without) != loss_of(whole)


@pytest.mark.parametrize("by", AVERAGES)
def test_bradley_terry_prefers_the_better_of_each_pair(by):
    groups, scores = played()
    pairs = asyncio.run(Pairs()(SimpleNamespace(groups=groups, scores=scores)))
    streams = {"values": drawn(groups), "pairs": pairs}
    numbers = {place: number for place, number in ends(groups, pairs).items() if place % 10 == 3}  # of last turns
    known = [tuple(next(p for p, n in numbers.items() if n == sign * k) for sign in (1, -1)) for k in (1, 2)]

    def equation(at):
        return float(np.mean([-log(sigmoid(at[better] - at[worse])) for better, worse in known]))

    at = ends(groups, streams["values"])
    _, gradient, metrics = passed(BradleyTerry(), groups, streams, by)
    assert metrics["bradley_terry_loss"] == pytest.approx(equation(at), rel=1e-5)
    assert metrics["bradley_terry_accuracy"] == np.mean([at[better] > at[worse] for better, worse in known])
    require_gradient(equation, at, gradient)
    twice = passed(BradleyTerry(coef=2.0), groups, streams, by)[1]
    assert twice[known[0][0]][-1] == pytest.approx(2 * gradient[known[0][0]][-1])


def test_a_step_without_pairs_has_no_loss():
    groups, _ = played()
    streams = {"values": drawn(groups), "pairs": numbered(groups, lambda g, t, n: 0)}
    total, gradient, metrics = passed(BradleyTerry(), groups, streams, "token")
    assert (total, metrics["bradley_terry_loss"]) == (0, 0)
    assert not np.any([value for values in gradient.values() for value in values])
