"""The credit of trees, by hand, and for every estimator that they compose with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made import group, score, trajectory

from sojourn.credit.grpo import GRPO
from sojourn.credit.papers.tree_grpo import TreeGRPO
from sojourn.credit.tree_values import TreeValues
from sojourn.types import Branch, Group

RETURNS = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0}


def tree() -> Group:
    """Two roots: a, of four turns, from which b left after the first turn and c, from b, after its second; d, of one.

    turns of a: 0 | 1 2 3      b: 0 | 4 | 5      c: 0 | 4 | 6      d: 7
    """
    rng = np.random.default_rng(0)
    a, others, d = trajectory(rng, turns=4), trajectory(rng, turns=3), trajectory(rng, turns=1)
    fresh = others.turns
    b = replace(a, turns=(a.turns[0], replace(fresh[0], parent=0), replace(fresh[1], parent=1)))
    c = replace(a, turns=(*b.turns[:2], replace(fresh[2], parent=1)))
    made = group([a, b, c, d])
    names = [replace(e, id=name) for e, name in zip(made.episodes, "abcd", strict=True)]
    branches = {"b": Branch("a", (1,)), "c": Branch("b", (2,))}
    return replace(made, episodes=tuple(replace(e, branch=branches.get(e.id)) for e in names))


def scores(of: Group):
    return [score(t, RETURNS[of.episodes[owner].id]) for t, owner in zip(of.trajectories, of.owners, strict=True)]


def advantages(estimator, of: Group) -> dict[str, list[float]]:
    [credits] = estimator([of], [scores(of)], {})
    return {
        of.episodes[owner].id: [round(float(tokens[0]), 4) for tokens in credit.tokens]
        for owner, credit in zip(of.owners, credits, strict=True)
    }


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
    assert advantages(TreeValues(value="max"), tree())["b"] == [0.5, -1.0, 0.0]


def test_without_branches_a_value_is_a_return():
    flat = replace(tree(), episodes=tuple(replace(e, branch=None) for e in tree().episodes))
    plain = GRPO(scale_by_std=False)
    assert advantages(TreeValues(), flat) == advantages(plain, flat)
    assert advantages(TreeGRPO(), flat) == advantages(GRPO(), flat)


def test_tree_grpo_adds_what_a_play_is_worth_in_its_tree_and_among_all():
    """Within the tree of a, b and c the returns 1, 0, 0 have the mean 1/3 and the deviation sqrt(2)/3."""
    found = advantages(TreeGRPO(epsilon=0.0), tree())
    within = {"a": 2**0.5, "b": -(0.5**0.5), "c": -(0.5**0.5), "d": 0.0}
    among = {"a": 1.0, "b": -1.0, "c": -1.0, "d": 1.0}
    for name, turns in found.items():
        assert turns == pytest.approx([within[name] + among[name]] * len(turns), abs=1e-4)


@pytest.mark.parametrize("estimator", [TreeValues(), TreeValues(against="both", by_leaves=True), TreeGRPO(), GRPO()])
def test_permuting_plays_permutes_credit(estimator):
    made = tree()
    expected = advantages(estimator, made)
    for order in ([3, 2, 1, 0], [1, 0, 3, 2], [2, 0, 1, 3]):
        assert advantages(estimator, replace(made, episodes=tuple(made.episodes[n] for n in order))) == expected
