"""The reward `reward_model`, with values given by hand: where a model says nothing, and what it is combined with."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import exp, nan

import numpy as np
import pytest
from cases import group, of_episodes, trajectory

from sojourn.errors import ConfigError
from sojourn.rewards.native import Native
from sojourn.rewards.reward_model import RewardModel
from sojourn.rewards.verified import Verified
from sojourn.train.reward_models import bound_turn_models


class Given:
    """A model whose values are given."""

    def __init__(self, *values: list[float]) -> None:
        self.values = list(values)

    async def ends(self, group):
        assert [len(one.turns) for one in group.trajectories] == [len(of_one) for of_one in self.values]
        return self.values


def scores(reward, model, of):
    return asyncio.run(bound_turn_models(reward, lambda name: model)(of))


def probability(value: float) -> float:
    return 1 / (1 + exp(-value))


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ("last", [0, 0, probability(-1)]),
        ("each", [probability(2), 0, probability(-1)]),
        ("change", [probability(2), 0, probability(-1) - probability(2)]),
    ],
)
def test_a_turn_without_tokens_has_no_value(turns, expected):
    [score] = scores(RewardModel(turns=turns), Given([2.0, nan, -1.0]), group(trajectory([2, 0, 3])))
    np.testing.assert_allclose(score.turns, expected, rtol=1e-6)
    assert score.parts["reward_model"] == pytest.approx(probability(-1))


def test_the_value_itself_may_be_the_reward_and_is_scaled():
    [score] = scores(RewardModel(output="value", coef=2.0), Given([7.0, -1.5]), group(trajectory([1, 1])))
    assert score.turns.tolist() == [0.0, -3.0]
    assert (score.total, score.result, score.parts["reward_model"]) == (-3.0, -3.0, -1.5)


def test_a_value_that_is_large_is_no_overflow():
    found = scores(RewardModel(), Given([1e4], [-1e4]), group(trajectory([1]), trajectory([1])))
    assert [score.total for score in found] == [1.0, 0.0]


def test_what_says_nothing_has_the_base_alone_and_failures_are_not_asked_about():
    one, silent, unplayed = trajectory([2, 1]), trajectory([0]), trajectory([])
    of = of_episodes([(one,), (silent,), (unplayed,), (one,)])
    failed = replace(of, episodes=(*of.episodes[:3], replace(of.episodes[3], error="the world is down")))
    reward = RewardModel(base=Native(scale=0.0, malformed=-1.0), turns="each")
    found = scores(reward, Given([0.0, 0.0], [nan], []), failed)
    assert [score.turns.tolist() for score in found] == [[0.5, 0.5], [0.0], []]
    assert "reward_model" not in found[1].parts


def test_it_may_be_the_base_of_another_and_two_are_told_apart():
    inner = RewardModel(model="first", turns="last")
    of, model = group(trajectory([1]), trajectory([1])), Given([3.0], [-3.0])
    found = scores(Verified(base=inner, threshold=0.5), model, of)
    assert [score.total for score in found] == [1.0, 0.0]
    both = scores(RewardModel(model="second", base=inner), model, of)
    assert set(both[0].parts) >= {"reward_model", "reward_model_second"}
    assert both[0].total == pytest.approx(2 * probability(3.0))


def test_it_scores_nothing_without_a_run():
    with pytest.raises(ConfigError, match="reads the model 'critic', which a run has open"):
        asyncio.run(RewardModel()(group(trajectory([1]))))
