"""The cache of rewards refuses what is no reward, and says whose it was."""

from dataclasses import dataclass, replace

import httpx
import pytest
from cases import group, paid, trajectory

from sojourn.errors import ConfigError, InfrastructureError, RewardError
from sojourn.rewards import reward_cache
from sojourn.rewards.reward_cache import RewardCache
from sojourn.types import Branch, Score


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


async def test_a_part_or_an_outcome_that_is_no_number_is_refused_by_its_name():
    (sound,) = paid([1])
    for wrong, words in (
        (replace(sound, parts={"speed": "fast"}), "the part 'speed' of the reward of episode 0-0 is 'fast'"),
        (replace(sound, parts={"rate": float("nan")}), "the part 'rate' of the reward of episode 0-0 is nan"),
        (replace(sound, outcome=float("inf")), "the outcome of the reward of episode 0-0 is inf"),
    ):
        with pytest.raises(ConfigError, match=f"{words}: expected a finite number"):
            await RewardCache(Says(wrong)).score(group(trajectory([1])))


async def test_too_few_scores_are_refused():
    with pytest.raises(ConfigError, match="gave 1 scores for 2 trajectories of slot 0"):
        await RewardCache(Says(*paid([0]))).score(group(trajectory([1]), trajectory([1])))


async def test_what_is_no_score_is_refused_with_what_is_expected():
    made = group(trajectory([1]), trajectory([1]))
    for wrong in (1.0, Score([1.0])):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"test_reward_cache:Says gave .*1\.0.* as a score: expected a sojourn"):
            await RewardCache(Says(wrong, wrong)).score(made)


async def test_a_reward_that_answers_at_once_is_told_to_be_async():
    class Hasty:
        def __call__(self, judged_group):
            return paid([1], [1])

    with pytest.raises(ConfigError, match=r"Hasty returned list .* at once: a reward is asked asynchronously: write"):
        await RewardCache(Hasty()).score(group(trajectory([1]), trajectory([1])))


@dataclass
class Flaky:
    """Fails with an error a number of times, and then pays 1 to all."""

    error: Exception
    failures: int
    calls: int = 0

    async def __call__(self, judged_group):
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return paid(*([1.0] * len(t.turns) for t in judged_group.trajectories))


@pytest.mark.parametrize("error", [ConnectionError("reset"), httpx.ConnectError("refused"), InfrastructureError("503")])
async def test_a_judge_whose_server_fails_is_asked_again_and_named_where_it_stays_away(error, monkeypatch):
    monkeypatch.setattr(reward_cache, "FIRST_WAIT_S", 0.0)
    made = group(trajectory([1]), trajectory([1]))
    twice = Flaky(error, 2)
    assert [score.total for score in await reward_cache.score_group(twice, made)] == [1.0, 1.0]
    assert twice.calls == 3
    with pytest.raises(
        RewardError, match=rf"the reward test_reward_cache:Flaky gave no answer for task .* in 3 .*{error}"
    ):
        await reward_cache.score_group(Flaky(error, 9), made)
    failed, scores = await reward_cache.scored_or_failed(RewardCache(Flaky(error, 9)).score, made)
    assert scores == []
    assert failed.trajectories == ()
    assert all("RewardError: the reward" in str(episode.error) for episode in failed.episodes)


async def test_only_episodes_that_an_error_names_fail_but_where_plays_branch():
    made = group(trajectory([1]), trajectory([1]), trajectory([1]))
    named = RewardError("no verdict", (made.episodes[1].id, "of another group"))
    cache = RewardCache(Flaky(named, 1))
    left, scores = await reward_cache.scored_or_failed(cache.score, made)
    assert [episode.error is None for episode in left.episodes] == [True, False, True]
    assert [score.total for score in scores] == [1.0, 1.0]
    assert await cache.score(left) == scores
    assert cache.reward.calls == 2
    first = made.episodes[0]
    branches = (first, replace(made.episodes[1], branch=Branch(first.id, (0,))), made.episodes[2])
    left, scores = await reward_cache.scored_or_failed(Flaky(named, 1), replace(made, episodes=branches))
    assert (left.trajectories, scores) == ((), [])


async def test_an_error_in_the_code_of_a_judge_stops_at_once():
    wrong = Flaky(KeyError("okk"), 9)
    with pytest.raises(KeyError):
        await reward_cache.scored_or_failed(RewardCache(wrong).score, group(trajectory([1])))
    assert wrong.calls == 1
