"""Losses of preferences: their values by hand, and that the weights they give tokens have exactly their gradients."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import exp, log, nan
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made import group, score, trajectory
from trained_run import RECIPE, train

from sojourn.batch import Aggregate, to_batch
from sojourn.config import toml
from sojourn.errors import ConfigError
from sojourn.losses.dpo import DPO
from sojourn.losses.ipo import IPO
from sojourn.losses.kto import KTO
from sojourn.losses.nca import NCA
from sojourn.losses.orpo import ORPO
from sojourn.losses.preference import Sums, pair_numbers
from sojourn.losses.simpo import SimPO
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.record import metrics
from sojourn.streams.desirable import Desirable
from sojourn.streams.group_softmax import GroupSoftmax
from sojourn.streams.pairs import Pairs
from sojourn.train.resolve import resolve
from sojourn.types import Credit

REWARDS = ([1.0, 0.0, 0.5, 0.5], [0.0, 0.0], [2.0, -1.0, 0.0])


def played():
    rng = np.random.default_rng(1)
    groups = [group([trajectory(rng, turns=2) for _ in rewards], slot) for slot, rewards in enumerate(REWARDS)]
    scores = [
        [score(t, reward) for t, reward in zip(g.trajectories, rewards, strict=True)]
        for g, rewards in zip(groups, REWARDS, strict=True)
    ]
    return groups, scores


def paired(**options):
    groups, scores = played()
    context = SimpleNamespace(groups=groups, scores=scores)
    return groups, asyncio.run(Pairs(**options)(context))


def numbers(values):
    return [[float(turns[0][0]) for turns in of_group] for of_group in values]


def test_the_best_is_paired_with_the_worst_and_equals_with_nobody():
    _, values = paired()
    assert numbers(values) == [[1, -1, 0, 0], [0, 0], [2, -2, 0]]
    assert all(set(turn.tolist()) == {-2.0} for turn in values[2][1])


def test_pairs_differ_by_more_than_the_margin_and_are_bounded():
    assert numbers(paired(margin=1.5)[1]) == [[0, 0, 0, 0], [0, 0], [1, -1, 0]]
    groups, _ = played()
    both = Pairs().pairs(groups[0], [1.0, 1.0, 2.5, 3.5])
    assert len(both) == 2
    assert Pairs(max_pairs=1).pairs(groups[0], [1.0, 1.0, 2.5, 3.5]) == both[:1]
    assert Pairs().pairs(groups[0], [1.0, nan, 2.5, nan]) == [(2, 0)]


def test_a_turn_of_plays_in_different_pairs_is_refused():
    """It has the mean of their numbers, which may be that of another pair."""
    values = np.zeros(6, dtype=np.float32)
    values[:] = (1, 1, 1.5, -1, -1, 0)
    batch = SimpleNamespace(weight=np.ones(6, dtype=np.float32), streams={"pairs": values})
    with pytest.raises(ConfigError, match="plays that fork share a turn and are in different pairs"):
        pair_numbers(batch)
    values[2] = 1.0
    assert pair_numbers(batch).tolist() == [1, 1, 1, -1, -1, 0]


def side(policy: float, reference: float, tokens: int) -> Sums:
    return Sums(*(torch.tensor([float(value)]) for value in (policy, reference, tokens)))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (DPO(beta=0.5), -log(1 / (1 + exp(-0.5 * ((-4 + 5) - (-9 + 7)))))),
        (IPO(tau=0.25), (((-4 + 5) / 2 - (-9 + 7) / 4) - 1 / 0.5) ** 2),
        (SimPO(beta=2.0, gamma=0.5), -log(1 / (1 + exp(-(2 * (-4 / 2 + 9 / 4) - 0.5))))),
        (ORPO(odds_coef=0.5), 2 - 0.5 * log(1 / (1 + ((exp(2) - 1) / (exp(2.25) - 1))))),
    ],
)
def test_the_loss_of_a_pair(loss, expected):
    """Of 2 tokens with log-probabilities -4 (policy) and -5 (reference), preferred to 4 tokens with -9 and -7."""
    assert float(loss.of_pairs(side(-4, -5, 2), side(-9, -7, 4))) == pytest.approx(expected, rel=1e-6)


def drawn(rng, turn):
    return -rng.uniform(1, 3, len(turn.sample.tokens)).astype(np.float32)


@pytest.mark.parametrize("loss", [DPO(beta=0.3), IPO(tau=0.2), SimPO(), ORPO(odds_coef=2.0)])
@pytest.mark.parametrize("by", ["token", "sequence"])
def test_the_tokens_have_the_gradient_of_the_mean_over_pairs(loss, by):
    groups, pairs = paired()
    rng = np.random.default_rng(2)
    credit = [[Credit.uniform(t, 1.0) for t in g.trajectories] for g in groups]
    reference = [[tuple(drawn(rng, turn) for turn in t.turns) for t in g.trajectories] for g in groups]
    streams = {"pairs": pairs, "ref_logprobs": reference}
    batch = to_batch(groups, credit, streams, aggregate=Aggregate(by=by), losses=[loss])
    present = -rng.uniform(0.5, 3, len(batch)).astype(np.float32)
    batch = replace(batch, streams={**batch.streams, **loss.choose(batch, present)})
    at = np.flatnonzero(batch.weight > 0)

    logprobs = torch.tensor(present[at], dtype=torch.float64, requires_grad=True)
    columns = {name: torch.tensor(values[at]) for name, values in batch.streams.items()}
    zeros = torch.zeros(len(at))
    chosen = SelectedTokens(torch.tensor(batch.weight[at]), zeros, zeros, zeros, zeros, columns)
    per_token, shown = loss(PassOutput(logprobs, zeros, zeros[:0]), chosen)
    (per_token * chosen.weight).sum().backward()

    again = torch.tensor(present[at], dtype=torch.float64, requires_grad=True)
    number, known = columns["pairs"], columns["ref_logprobs"].double()

    def sums(wanted):
        own = number == wanted
        return Sums(again[own].sum()[None], known[own].sum()[None], own.sum().double()[None])

    losses = torch.cat([loss.of_pairs(sums(k), sums(-k)) for k in (1, 2)])
    losses.mean().backward()
    assert torch.allclose(logprobs.grad, again.grad, rtol=1e-5, atol=1e-7)
    assert logprobs.grad[number == 0].abs().max() == 0
    assert logprobs.grad.abs().max() > 0
    name = type(loss).__name__.lower()
    assert torch.allclose(shown[f"{name}_loss"][number == 2].double(), losses[1].detach())


def sigmoid(value: float) -> float:
    return 1 / (1 + exp(-value))


def test_the_losses_of_single_trajectories():
    """Of log-probabilities -4 (policy) and -5 (reference), and of -9 and -7."""
    two = Sums(*(torch.tensor(values, dtype=torch.float64) for values in ([-4, -9], [-5, -7], [2, 4])))
    kto = KTO(beta=0.5, desirable_weight=2.0, undesirable_weight=3.0)
    found = kto.of_trajectories(two, torch.tensor([1.0, -1.0]), 0.25)
    expected = [2 * (1 - sigmoid(0.5 * (1 - 0.25))), 3 * (1 - sigmoid(0.5 * (0.25 + 2)))]
    assert found.tolist() == pytest.approx(expected, rel=1e-6)
    found = NCA(beta=0.5).of_trajectories(two, torch.tensor([2.0, 0.0]))
    best = -2 * log(sigmoid(0.5)) - log(sigmoid(-0.5))
    assert found.tolist() == pytest.approx([best, -log(sigmoid(1))], rel=1e-6)
    pairwise = -log(sigmoid(0.5)) - 0.5 * log(sigmoid(-0.5)) - 0.5 * log(sigmoid(1))  # of the authors' code for pairs
    assert float(found.mean()) == pytest.approx(pairwise, rel=1e-6)


@pytest.mark.parametrize("loss", [KTO(beta=0.3, undesirable_weight=2.0), NCA(beta=0.3)])
@pytest.mark.parametrize("by", ["token", "sequence"])
def test_the_tokens_have_the_gradient_of_the_mean_over_trajectories(loss, by):
    groups, scores = played()
    rng = np.random.default_rng(3)
    context = SimpleNamespace(groups=groups, scores=scores)
    stream = Desirable(above=0.5, below=0.0) if isinstance(loss, KTO) else GroupSoftmax(alpha=2.0)
    labels = asyncio.run(stream(context))
    streams = {
        stream.provides: labels,
        "ref_logprobs": [[tuple(drawn(rng, turn) for turn in t.turns) for t in g.trajectories] for g in groups],
        "reference_kl": [
            [tuple(np.full(len(u.sample.tokens), 0.4) for u in t.turns) for t in g.trajectories] for g in groups
        ],
    }
    credit = [[Credit.uniform(t, 1.0) for t in g.trajectories] for g in groups]
    batch = to_batch(groups, credit, streams, aggregate=Aggregate(by=by), losses=[loss])
    present = -rng.uniform(0.5, 3, len(batch)).astype(np.float32)
    batch = replace(batch, streams={**batch.streams, **loss.choose(batch, present)})
    at = np.flatnonzero(batch.weight > 0)
    logprobs = torch.tensor(present[at], dtype=torch.float64, requires_grad=True)
    columns = {name: torch.tensor(values[at]) for name, values in batch.streams.items()}
    zeros = torch.zeros(len(at))
    chosen = SelectedTokens(torch.tensor(batch.weight[at]), zeros, zeros, zeros, zeros, columns)
    per_token, shown = loss(PassOutput(logprobs, zeros, zeros[:0]), chosen)
    (per_token * chosen.weight).sum().backward()

    again = torch.tensor(present[at], dtype=torch.float64, requires_grad=True)
    own = [torch.tensor(batch.trajectory[at] == number) for number in range(9)]
    label = torch.stack([columns[stream.provides][mask][0].double() for mask in own])
    known = columns["ref_logprobs"].double()
    sums = Sums(
        torch.stack([again[mask].sum() for mask in own]),
        torch.stack([known[mask].sum() for mask in own]),
        torch.stack([mask.sum().double() for mask in own]),
    )
    rest = (float(np.float32(0.4)),) if isinstance(loss, KTO) else ()
    losses = loss.of_trajectories(sums, label, *rest)
    counted = label != 0 if isinstance(loss, KTO) else label > -1
    losses[counted].mean().backward()
    assert torch.allclose(logprobs.grad, again.grad, rtol=1e-5, atol=1e-7)
    assert logprobs.grad.abs().max() > 0
    assert [bool(logprobs.grad[mask].any()) for mask in own] == counted.tolist()
    name = type(loss).__name__.lower()
    assert torch.allclose(shown[f"{name}_loss"][own[0]].double(), losses[0].detach())


def test_a_pair_that_is_divided_is_refused():
    groups, pairs = paired()
    credit = [[Credit.uniform(t, 1.0) for t in g.trajectories] for g in groups]
    batch = to_batch(groups, credit, {"pairs": pairs}, aggregate=Aggregate(), losses=[SimPO()])
    half = next(iter(batch.minibatches(9)))
    with pytest.raises(ConfigError, match=r"is divided between two minibatches.*set minibatches = 1"):
        SimPO().choose(half, np.zeros(len(half), dtype=np.float32))


def test_minibatches_are_refused_before_anything_is_played(tmp_path):
    (tmp_path / "r.toml").write_text(RECIPE)
    overrides = ["stages.rl.losses=[{name='simpo'}]", "stages.rl.streams=[{name='pairs'}]", "stages.rl.minibatches=2"]
    with pytest.raises(ConfigError, match=r"SimPO compares the trajectories of a step .* minibatches = 2 would divide"):
        resolve(toml.read(tmp_path / "r.toml", overrides))


@pytest.mark.parametrize("wrapper", ["name='importance'", "name='weighted', stream='policy_logprobs'"])
def test_minibatches_are_refused_also_inside_of_other_losses(tmp_path, wrapper):
    (tmp_path / "r.toml").write_text(RECIPE)
    streams = "stages.rl.streams=[{name='pairs'}, {name='policy_logprobs'}]"
    overrides = [f"stages.rl.losses=[{{{wrapper}, base={{name='simpo'}}}}]", streams, "stages.rl.minibatches=2"]
    with pytest.raises(ConfigError, match=r" compares the trajectories of a step .* minibatches = 2 would divide"):
        resolve(toml.read(tmp_path / "r.toml", overrides))


def test_a_run_prefers_what_was_rewarded(tmp_path):
    """Online: live groups are paired, and DPO with the stage's beginning as the reference learns from them."""
    run = train(
        tmp_path / "run",
        "stages.rl.groups={name='slots', width=4, size=4}",
        "stages.rl.estimator={name='constant'}",
        "stages.rl.losses=[{name='dpo'}]",
        "stages.rl.streams=[{name='pairs'}, {name='ref_logprobs'}]",
        "stages.rl.steps=2",
        "env={name='made_world:Odd'}",  # the plays of odd tasks are paid 1, 0, 1, 0
        "agent={name='plain'}",
        "stages.0.groups.success_only=false",
    )
    lines = [line.values for line in metrics.read(run / "metrics.jsonl") if line.stage == "rl"]
    assert 0 < lines[0]["dpo_loss"] < log(2) + 1e-4  # log 2 for each pair at first, and 0 where there is none
    assert lines[0]["dpo_accuracy"] < 1
    assert len(lines) == 2
