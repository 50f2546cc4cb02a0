"""The credit of trees, by hand, and for every estimator that they compose with."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest
from forked import advantages, apart, tree, trees
from hypothesis import given
from hypothesis import strategies as st
from made import score

from sojourn.config.components import COMPONENTS
from sojourn.credit.grpo import GRPO
from sojourn.credit.papers.tree_grpo import TreeGRPO
from sojourn.credit.rloo import RLOO
from sojourn.credit.tree_values import TreeValues
from sojourn.types import Group, Sample, Score, Trajectory, Turn

VALUES = ("mean", "children", "max", "entropy")
AT2PO = TreeValues(value="entropy", against="group", scale_by_std=True, epsilon=0.0)
ESTIMATORS = [
    TreeValues(),
    TreeValues(against="both", by_leaves=True),
    TreeValues(value="children", against="siblings"),
    TreeValues(value="max"),
    AT2PO,
    TreeGRPO(),
]


def test_a_turn_is_worth_the_mean_of_its_leaves():
    """Values: turn 0 1/3, turns 1-3 1, turn 4 0, turns 5, 6 0, turn 7 1; of all plays 1/2."""
    found = advantages(TreeValues(), tree())
    first = round(1 / 3 - 1 / 2, 4)
    assert found == {
        "a": [first, *[round(1 - 1 / 3, 4)] * 3],
        "b": [first, round(-1 / 3, 4), 0.0],
        "c": [first, round(-1 / 3, 4), 0.0],
        "d": [0.5],
    }


def test_a_turn_against_the_group_and_against_both():
    """TreeRL's example: global and local advantage, over the root of the leaves: 3 below turn 0, 2 below turn 4."""
    assert advantages(TreeValues(against="group"), tree())["b"] == [round(1 / 3 - 1 / 2, 4), -0.5, -0.5]
    found = advantages(TreeValues(against="both", by_leaves=True), tree())
    expected = [2 * (1 / 3 - 1 / 2) / 3**0.5, (-1 / 3 - 1 / 2) / 2**0.5, -0.5]
    assert found["b"] == pytest.approx(expected, abs=1e-4)
    assert found["a"] == pytest.approx([expected[0], *[2 / 3 + 1 / 2] * 3], abs=1e-4)


def test_the_best_leaf_may_be_what_counts():
    assert advantages(TreeValues(value="max"), tree())["b"] == [0.0, -1.0, 0.0]


def test_without_branches_a_value_is_a_return():
    flat, plain = apart(tree()), GRPO(scale_by_std=False)
    for value in VALUES:
        assert advantages(TreeValues(value=value, against="group"), flat) == advantages(plain, flat)
    assert advantages(TreeValues(), flat) == advantages(plain, flat)
    assert advantages(TreeValues(scale_by_std=True), flat) == advantages(GRPO(), flat)
    assert advantages(TreeValues(against="siblings"), flat) == advantages(RLOO(), flat)
    assert advantages(TreeGRPO(), flat) == advantages(GRPO(), flat)


def test_tree_grpo_adds_what_a_play_is_worth_in_its_tree_and_among_all():
    """Within the tree of a, b and c the returns 1, 0, 0 have the mean 1/3 and the deviation sqrt(2)/3."""
    found = advantages(TreeGRPO(epsilon=0.0), tree())
    within = {"a": 2**0.5, "b": -(0.5**0.5), "c": -(0.5**0.5), "d": 0.0}
    among = {"a": 1.0, "b": -1.0, "c": -1.0, "d": 1.0}
    for name, turns in found.items():
        assert turns == pytest.approx([within[name] + among[name]] * len(turns), abs=1e-4)


@pytest.mark.parametrize("order", ["acd", "dca"])
def test_tree_grpo_keeps_a_tree_of_which_a_filter_took_out_the_middle(order):
    """Without b, from which c left, a and c are still of one tree, whose returns are 1 and 0."""
    whole = tree()
    of = replace(whole, episodes=tuple(next(e for e in whole.episodes if e.id == name) for name in order))
    found = advantages(TreeGRPO(epsilon=0.0), of)
    among = {"a": 0.5**0.5, "c": -(2**0.5), "d": 0.5**0.5}
    for name, within in {"a": 1.0, "c": -1.0, "d": 0.0}.items():
        assert found[name] == pytest.approx([within + among[name]] * len(found[name]), abs=1e-4)


def test_temporal_differences_count_the_ways_and_not_the_leaves():
    """Values: turn 4 0, turn 0 (1 + 0) / 2, the start (1/2 + 1) / 2."""
    found = advantages(TreeValues(value="children"), tree())
    assert found == {
        "a": [-0.25, *[0.5] * 3],
        "b": [-0.25, -0.5, 0.0],
        "c": [-0.25, -0.5, 0.0],
        "d": [0.25],
    }
    assert advantages(TreeValues(value="children", against="group"), tree())["a"] == [0.0, *[0.5] * 3]


def test_a_turn_against_its_siblings():
    """Turn 0 is worth 1/3 and turn 7 is worth 1; turn 1 is worth 1 and turn 4 nothing."""
    less = round(-2 / 3, 4)
    assert advantages(TreeValues(against="siblings"), tree()) == {
        "a": [less, *[1.0] * 3],
        "b": [less, -1.0, 0.0],
        "c": [less, -1.0, 0.0],
        "d": [-less],
    }


def test_a_turn_without_siblings_has_no_advantage_among_them():
    """One root alone, which forks after its first turn: 1 beside 0 and 0."""
    alone = replace(tree(), episodes=tree().episodes[:3])
    for value in VALUES:
        for against in ("siblings", "parent"):
            assert advantages(TreeValues(value=value, against=against), alone)["a"][0] == 0.0
    assert advantages(TreeValues(against="siblings"), alone)["b"] == [0.0, -1.0, 0.0]


def test_rewards_at_turns_and_their_discount():
    """With half of what comes a turn later, the returns of a, b, c and d are 1.5, 3, 5 and 3.

    By hand, from the leaves: turns 5 and 6 are worth 0 and 8, turn 4 4 + 8 / 4 = 6, turn 1 2 / 2 = 1, turn 0
    1 + (1 + 6) / 4 = 2.75, the start (2.75 + 3) / 2 = 2.875. The advantage of turn t has the factor 1 / 2^t.
    """
    rewards = {"a": [1, 0, 2, 0], "b": [1, 4, 0], "c": [1, 4, 8], "d": [3]}
    judged = [Score(np.array(turns, dtype=np.float32)) for turns in rewards.values()]
    assert advantages(TreeValues(value="children", discount=0.5), tree(), judged) == {
        "a": [-0.125, *[(1 - 3.5) / 2] * 3],
        "b": [-0.125, (6 - 3.5) / 2, (0 - 4) / 4],
        "c": [-0.125, (6 - 3.5) / 2, (8 - 4) / 4],
        "d": [0.125],
    }
    means = advantages(TreeValues(discount=0.5), tree(), judged)
    assert means["b"] == pytest.approx([9.5 / 3 - 12.5 / 4, 4 - 9.5 / 3, 3 - 4], abs=1e-4)


def test_at2po_weighs_the_ways_by_the_entropy_of_their_first_turns():
    """Standardised, the returns are 1, -1, -1 and 1. With the entropies ln 3 and 0 of turns 1 and 4, turn 0 is worth
    (3 - 1) / 4, and each value is the advantage."""
    made = tree()
    certain = {id(made.episodes[0].trajectories[0].turns[1].sample): np.log(3), id(_turn(made, 1, 1).sample): 0.0}
    turns = {key: _of_entropy(sample, certain[key]) for key, sample in _samples(made).items() if key in certain}
    found = advantages(AT2PO, _with_samples(made, turns))
    assert found == {"a": [0.5, 1, 1, 1], "b": [0.5, -1, -1], "c": [0.5, -1, -1], "d": [1.0]}


def _turn(of: Group, episode: int, number: int) -> Turn:
    return of.episodes[episode].trajectories[0].turns[number]


def _samples(of: Group) -> dict[int, Sample]:
    return {id(turn.sample): turn.sample for t in of.trajectories for turn in t.turns}


def _of_entropy(sample: Sample, entropy: float) -> Sample:
    return replace(sample, logprobs=np.full(len(sample.tokens), -entropy, dtype=np.float32))


def _with_samples(of: Group, others: dict[int, Sample]) -> Group:
    """The same plays with other samples in place of some, which stay shared."""
    return replace(
        of,
        episodes=tuple(
            replace(
                episode,
                trajectories=tuple(
                    replace(t, turns=tuple(replace(u, sample=others.get(id(u.sample), u.sample)) for u in t.turns))
                    for t in episode.trajectories
                ),
            )
            for episode in of.episodes
        ),
    )


Path = tuple[int, ...]  # the samples of the turns so far


def bellman(of: Group, rewards: dict[int, float], value: str, discount: float) -> dict[Path, float]:
    """The value of what follows each path, by Bellman's equation, beside the implementation's values of returns."""
    whole = [tuple(id(turn.sample) for turn in t.turns) for t in of.trajectories]
    found: dict[Path, float] = {}

    def after(path: Path) -> float:
        ways = {p[: len(path) + 1] for p in whole if len(p) > len(path) and p[: len(path)] == path}
        going = [rewards[way[-1]] + discount * after(way) for way in ways]
        leaves = [sum(p[: len(way)] == way for p in whole) for way in ways]
        ended = whole.count(path)
        values, weights = going + [0.0] * ended, leaves + [1] * ended
        averages = {"mean": np.average(values, weights=weights), "children": np.mean(values), "max": max(values)}
        found[path] = float(averages[value])
        return found[path]

    after(())
    return found


@pytest.mark.parametrize("discount", [1.0, 0.5])
@pytest.mark.parametrize("value", ["mean", "children", "max"])
@given(made=trees(), seed=st.integers(0, 9))
def test_an_advantage_is_a_temporal_difference(value, discount, made, seed):
    """r + discount V(after) - V(before) at the first turn after a fork, as in VinePPO's code, by depth t discount^t."""
    rng = np.random.default_rng(seed)
    rewards = {key: float(rng.integers(-2, 3)) for key in _samples(made)}
    judged = _paid(made, rewards)
    worth = bellman(made, rewards, value, discount)
    [credits] = TreeValues(value=value, discount=discount)([made], [judged], {})
    for t, credit in zip(made.trajectories, credits, strict=True):
        path = tuple(id(turn.sample) for turn in t.turns)
        expected = 0.0
        for number, key in enumerate(path):
            before, now = path[:number], path[: number + 1]
            if not number or len(_sharing(made, before)) > len(_sharing(made, now)):
                expected = discount**number * (rewards[key] + discount * worth[now] - worth[before])
            np.testing.assert_allclose(credit.tokens[number], expected, atol=1e-5)


def _paid(of: Group, rewards: dict[int, float]) -> list[Score]:
    return [Score(np.array([rewards[id(turn.sample)] for turn in t.turns], dtype=np.float32)) for t in of.trajectories]


def _sharing(of: Group, path: Path) -> list[Trajectory]:
    return [t for t in of.trajectories if tuple(id(turn.sample) for turn in t.turns)[: len(path)] == path]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(made=trees(), constant=st.sampled_from([-2.0, 0.5]), seed=st.integers(0, 9))
def test_shared_turns_have_one_advantage_and_a_constant_changes_none(estimator, made, constant, seed):
    totals = np.random.default_rng(seed).integers(0, 2, len(made.trajectories)).astype(float)
    [credits], [moved] = (
        estimator([made], [[score(t, total + c) for t, total in zip(made.trajectories, totals, strict=True)]], {})
        for c in (0.0, constant)
    )
    first: dict[int, np.ndarray] = {}
    for t, credit, other in zip(made.trajectories, credits, moved, strict=True):
        for turn, tokens, same in zip(t.turns, credit.tokens, other.tokens, strict=True):
            np.testing.assert_allclose(tokens, same, atol=1e-4)
            if isinstance(estimator, TreeValues):
                np.testing.assert_array_equal(tokens, first.setdefault(id(turn.sample), tokens))


@pytest.mark.parametrize("estimator", [*ESTIMATORS, GRPO()])
def test_permuting_plays_permutes_credit(estimator):
    made = tree()
    expected = advantages(estimator, made)
    for order in ([3, 2, 1, 0], [1, 0, 3, 2], [2, 0, 1, 3]):
        assert advantages(estimator, replace(made, episodes=tuple(made.episodes[n] for n in order))) == expected


@pytest.mark.parametrize("name", COMPONENTS["estimator"])
def test_permuting_plays_permutes_the_credit_of_every_estimator_that_reads_no_stream(name):
    module, _, cls = COMPONENTS["estimator"][name].partition(":")
    estimator = getattr(importlib.import_module(module), cls)()
    if estimator.needs:
        return
    made = tree()
    expected = advantages(estimator, made)
    for order in ([3, 2, 1, 0], [2, 0, 1, 3]):
        moved = replace(made, episodes=tuple(made.episodes[n] for n in order))
        assert advantages(type(estimator)(), moved) == expected
