"""The judge refuses what is no reward, and says whose it was."""

from dataclasses import replace

import pytest
from cases import group, paid, trajectory

from sojourn.errors import ConfigError
from sojourn.rewards.reward_cache import RewardCache


class Says:
    def __init__(self, *scores):
        self.scores = list(scores)

    async def __call__(self, group):
        return self.scores


async def test_a_reward_that_is_no_number_is_refused_with_its_episode_and_turn():
    made = group(*(trajectory([1, 1]) for _ in range(3)))
    broken = replace(made.episodes[0], error="the browser died")  # the first that is judged is the second
    made = replace(made, episodes=(broken, *made.episodes[1:]))
    with pytest.raises(ConfigError, match=r"the reward of turn 1 of episode 0-2 is nan: expected a finite number"):
        await RewardCache(Says(*paid([0, 1], [0, float("nan")]))).score(made)


async def test_too_few_scores_are_refused():
    with pytest.raises(ConfigError, match="gave 1 scores for 2 trajectories of slot 0"):
        await RewardCache(Says(*paid([0]))).score(group(trajectory([1]), trajectory([1])))
