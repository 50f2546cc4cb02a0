"""Which episodes of a group are the best, by hand."""

from dataclasses import replace

import pytest
from cases import group, paid, trajectory

from sojourn.config.registry import build
from sojourn.filters import apply_filters
from sojourn.filters.best import Best


def test_the_highest_rewards_stay():
    made = group(*(trajectory([1, 1]) for _ in range(4)))
    scores = paid([0, 0.5], [1, 0], [0, 0], [0.25, 0.5])
    assert Best()(made, scores) == [1]
    assert Best(count=2)(made, scores) == [1, 3]
    assert Best(count=9)(made, scores) == [0, 1, 2, 3]


def test_among_failures_one_stays_whatever_their_order():
    made = group(*(trajectory([1]) for _ in range(5)))
    scores = paid(*([0] for _ in range(5)))
    [kept] = Best()(made, scores)
    turned = replace(made, episodes=made.episodes[::-1])
    [again] = Best()(turned, scores)
    assert made.episodes[kept].id == turned.episodes[again].id


def test_failed_episodes_are_not_the_best():
    made = group(*(trajectory([1]) for _ in range(3)))
    broken = replace(made.episodes[2], error="the browser died")
    made = replace(made, episodes=(*made.episodes[:2], broken))
    assert Best()(made, paid([0.1], [0.2])) == [1]
    assert Best()(replace(made, episodes=(broken,)), []) == []


def test_what_is_trained_is_the_best_of_each_group():
    groups = [group(*(trajectory([1]) for _ in range(3))) for _ in range(2)]
    scores = [paid([0], [1], [0]), paid([3], [1], [2])]
    kept, kept_scores = apply_filters([Best()], groups, scores)
    assert [[score.total for score in of_group] for of_group in kept_scores] == [[1], [3]]
    assert [[e.id for e in one.episodes] for one in kept] == [[groups[0].episodes[1].id], [groups[1].episodes[0].id]]


def test_the_weights_of_rise_by_hand():
    """Each turn counts by its own reward: 1 for a failed attempt, exp(1 / 0.4) for the one that succeeded."""
    table = {"name": "awr", "beta": 0.4, "base": {"name": "reinforce", "discount": 0.0, "baseline": "none"}}
    estimator = build("estimator", table).value
    [[credit]] = estimator([group(trajectory([2, 3]))], [paid([0, 1])], {})
    assert [turn.tolist() for turn in credit.tokens] == [[1.0] * 2, pytest.approx([12.18249] * 3)]
