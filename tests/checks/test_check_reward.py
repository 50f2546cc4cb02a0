"""Every reward of ours keeps its promises; every broken one here breaks one, and that one is reported."""

import asyncio
import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from sojourn.checks.report import Outcome
from sojourn.checks.reward import PROMISES, check_reward
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build
from sojourn.types import Score

ASKING = [
    {"name": "judge", "mode": "pairwise"},
    {"name": "judge", "mode": "pairwise", "neighbours": 1, "samples": 3, "temperature": 1.0},
    {"name": "judge", "mode": "ranking"},
    {"name": "judge", "mode": "reference", "reference": "answer"},
    {"name": "judge", "criteria": [{"name": "goal"}, {"name": "secret", "low": -10.0, "high": 0.0}]},
    {"name": "next_state", "judged_by": "model", "hints": True, "history": 2},
    {"name": "next_state", "judged_by": "model", "base": {"name": "judge"}},
    {"name": "overlong", "base": {"name": "judge", "base": {"name": "judge", "mode": "pairwise"}}},
]


@pytest.mark.parametrize("table", ASKING, ids=str)
async def test_judges_of_all_kinds_keep_every_promise(table):
    report = await check_reward(build("reward", table).value)
    assert report.passed, report


@pytest.mark.parametrize("name", COMPONENTS["reward"])
async def test_ours_keep_every_promise(name):
    report = await check_reward(build("reward", {"name": name}).value)
    assert [v.outcome for v in report.verdicts] == [Outcome.PASSED] * len(PROMISES), report.verdicts


@dataclass(frozen=True)
class Sound:
    """The world's reward; the broken ones change one thing."""

    async def __call__(self, group):
        return [self.score(trajectory) for trajectory in group.trajectories]

    def score(self, trajectory):
        turns = np.array([turn.reward for turn in trajectory.turns], dtype=np.float32)
        return Score(turns, {"length": float(len(turns))})


class PerEpisode(Sound):
    async def __call__(self, group):
        return [self.score(episode.trajectories[0]) for episode in group.episodes]


class Totals(Sound):
    def score(self, trajectory):
        return float(super().score(trajectory).total)


class OnePerTrajectory(Sound):
    def score(self, trajectory):
        return Score(np.array([trajectory.reward], dtype=np.float32))


class Listed(Sound):
    """Gives the turns as a list, which cannot be added up as an array can."""

    def score(self, trajectory):
        return Score([turn.reward for turn in trajectory.turns])


class Whole(Sound):
    def score(self, trajectory):
        return Score(np.array([1 for _ in trajectory.turns]))


class AtOnce(Sound):
    def __call__(self, group):
        return [self.score(trajectory) for trajectory in group.trajectories]


class Infinite(Sound):
    def score(self, trajectory):
        return replace(super().score(trajectory), parts={"rate": float("nan")})


class LastTurn(Sound):
    """Reads a turn that a trajectory without turns does not have."""

    def score(self, trajectory):
        return replace(super().score(trajectory), outcome=trajectory.turns[-1].reward)


class Random(Sound):
    def score(self, trajectory):
        return replace(super().score(trajectory), outcome=random.random())


class FirstWins(Sound):
    async def __call__(self, group):
        scores = await super().__call__(group)
        return (
            [replace(scores[0], outcome=1.0), *(replace(score, outcome=0.0) for score in scores[1:])] if scores else []
        )


@dataclass(frozen=True)
class Shared(Sound):
    """Keeps in a field which group it is scoring, so that groups scored at the same time are mixed up."""

    now: list = field(default_factory=list)

    async def __call__(self, group):
        self.now[:] = [group.slot]
        await asyncio.sleep(0)
        return [replace(score, outcome=float(self.now[0])) for score in await super().__call__(group)]


class Flattening(Sound):
    def score(self, trajectory):
        for turn in trajectory.turns:
            turn.sample.logprobs[:] = 0
        return super().score(trajectory)


async def test_a_sound_one_passes():
    report = await check_reward(Sound())
    assert [v.outcome for v in report.verdicts] == [Outcome.PASSED] * len(PROMISES), report.verdicts


@pytest.mark.parametrize(
    ("broken", "promise", "words"),
    [
        (Totals(), "there is a score for every trajectory", "as a score: expected a sojourn.types.Score"),
        (OnePerTrajectory(), "there is a score for every trajectory", "gave 1 numbers for the 3 turns"),
        (Listed(), "there is a score for every trajectory", "whose `turns` is a numpy array"),
        (Whole(), "there is a score for every trajectory", "rewards of type int64"),
        (AtOnce(), "there is a score for every trajectory", "returned list"),
        (AtOnce(), "there is a score for every trajectory", "write `async def __call__`"),
        (Infinite(), "there is a score for every trajectory", "the part 'rate' of the reward of episode 0-0 is nan"),
        (LastTurn(), "truncated, malformed and forked trajectories are scored", "IndexError"),
        (PerEpisode(), "failures and other seats are left out", "gave 4 scores for 3 trajectories"),
        (Random(), "it is deterministic", "the same group, scored again"),
        (Shared(), "groups are scored apart", "with other groups scored at the same time"),
        (FirstWins(), "permuting episodes permutes scores", "in another order"),
        (Flattening(), "its inputs are not modified", "give a score as a new value"),
    ],
)
async def test_a_broken_reward_is_caught(broken, promise, words):
    report = await check_reward(broken)
    assert report.failed == (promise,)
    assert words in report[promise].detail
