"""Slots: which tasks they play, and what becomes of groups whose episodes all scored alike."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from made import TASK, score, trajectory
from made_world import Odd, Says, components, seeds, stage_of

from sojourn.credit.grpo import GRPO
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.losses.ppo import PPO
from sojourn.rewards import reward_cache
from sojourn.rewards.native import Native
from sojourn.rewards.overlong import Overlong
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.sources.mixed import Mixed
from sojourn.sources.replay import Replay
from sojourn.sources.slots import Slots, has_zero_signal
from sojourn.tasks import Generated
from sojourn.train.loop import StepResult, Update
from sojourn.train.recipe import Stage
from sojourn.train.step_metrics import step_metrics
from sojourn.types import Episode, Group, Message, Observation, Prompt, Role, Sample, SamplingParams, Step, Task


async def steps(slots: Slots, world: Odd, count: int, first: int = 0, **options):
    """The groups of each step, and every group that was judged for them, in the order of recording."""
    made = components(world, **options)
    source = slots.bind(made, "rl", count, first)
    taken = []
    for step in range(count):
        groups = await source.take(step)
        taken.append(groups)
        await made.rewards(groups)
    await source.close()
    return taken, made.rewards.pop((), below=10**9)


async def test_keep_gives_every_slot_its_task_in_order():
    taken, judged = await steps(Slots(width=3, size=2), Odd(), 2)
    assert [seeds(groups) for groups in taken] == [[0, 1, 2], [3, 4, 5]]
    assert [[g.slot for g in groups] for groups in taken] == [[0, 1, 2], [3, 4, 5]]
    assert all(len(g.episodes) == 2 for groups in taken for g in groups)
    assert len(judged) == 6


async def test_drop_leaves_out_groups_without_signal_and_they_stay_judged():
    taken, judged = await steps(Slots(width=3, size=2, zero_signal="drop"), Odd(), 2)
    assert [seeds(groups) for groups in taken] == [[1], [3, 5]]
    assert sorted(seeds(j.group for j in judged)) == [0, 1, 2, 3, 4, 5]


async def test_redraw_plays_another_task_in_the_same_slot():
    world = Odd(count=102)  # slot k is redrawn as task k + 51: odd where k is even
    taken, judged = await steps(Slots(width=3, size=2, zero_signal="redraw"), world, 2)
    assert [seeds(groups) for groups in taken] == [[51, 1, 53], [3, 55, 5]]
    assert [[g.slot for g in groups] for groups in taken] == [[0, 1, 2], [3, 4, 5]]
    assert sorted(seeds(j.group for j in judged)) == [0, 1, 2, 3, 4, 5, 51, 53, 55]
    assert {slot: [j.group.task.seed for j in judged if j.group.slot == slot] for slot in (0, 1)} == {
        0: [0, 51],
        1: [1],
    }
    assert set(world.plays.values()) == {2}


@pytest.mark.parametrize("redraws", [0, 1, 3])
async def test_redraws_are_limited_and_the_last_can_be_trained(redraws: int):
    world = Odd(paying=False)
    slots = Slots(width=1, size=2, zero_signal="redraw", max_redraws=redraws, exhausted="keep")
    taken, judged = await steps(slots, world, 1)
    drawn = [0, 50, 25, 75][: redraws + 1]  # of the 100 tasks
    assert seeds(taken[0]) == [drawn[-1]]
    assert seeds(j.group for j in judged) == drawn
    assert world.plays == dict.fromkeys(drawn, 2)


async def test_every_play_of_every_redraw_has_a_seed_of_its_own_which_a_second_run_repeats():
    first, second = Says(), Says()
    for sampler in (first, second):
        await steps(Slots(width=2, size=3, zero_signal="redraw", max_redraws=1), Odd(paying=False), 2, sampler=sampler)
    asked = [params.seed for params in first.asked]
    assert len(set(asked)) == len(asked) == 2 * 2 * 3 * 2
    assert set(asked) == {params.seed for params in second.asked}


async def test_a_stage_goes_on_where_the_tasks_of_earlier_ones_end():
    slots = Slots(width=3, size=1)
    assert slots.tasks(4) == 12
    taken, _ = await steps(slots, Odd(), 2, first=12)
    assert [seeds(groups) for groups in taken] == [[12, 13, 14], [15, 16, 17]]
    assert [g.slot for groups in taken for g in groups] == list(range(6))  # slots count within the stage


async def test_lag_starts_slots_ahead_but_none_beyond_the_stage():
    world = Odd()
    made = components(world)
    source = Slots(width=2, size=1, max_lag=2).bind(made, "rl", 4)
    started = []
    for step in range(4):
        assert seeds(await source.take(step)) == [2 * step, 2 * step + 1]
        for _ in range(100):  # whatever may start, does
            await asyncio.sleep(0)
        started.append(sorted(world.plays))
    await source.close()
    assert started == [list(range(6)), *[list(range(8))] * 3]


async def test_plays_ask_for_no_newer_weights_than_there_were_when_their_slot_began():
    class Dated(Says):
        """Says by which weights at least each task asks: those that were the newest at `since_now`."""

        newest, since, plain = 0, list[int](), 0

        def since_now(self) -> Says:
            self.since.append(self.newest)
            return Says()

        async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
            self.plain += 1
            return await super().sample(prompt, params)

    sampler = Dated()
    source = Slots(width=2, size=3, max_lag=1).bind(components(Odd(), sampler=sampler), "rl", 4)
    for step in range(4):
        await source.take(step)
        sampler.newest += 1
    await source.close()
    assert sampler.since == [0, 0, 0, 0, 1, 1, 2, 2]
    assert not sampler.plain


async def test_a_truncated_distribution_is_refused():
    made = components(Odd())
    object.__setattr__(made.recipe.sampling, "top_p", 0.9)
    with pytest.raises(ConfigError, match="top_p = 1"):
        await Slots().check(stage_of(made, "rl"))


@pytest.mark.parametrize("zero_signal", ["drop", "redraw"])
def test_a_filter_of_groups_of_one_is_refused(zero_signal):
    with pytest.raises(ValueError, match="a lone episode"):
        Slots(size=1, zero_signal=zero_signal)


@dataclass(frozen=True, kw_only=True)
class Wins:
    """One turn. Of the plays of task n `wins[n]` succeed; `told = false` pays them, but tells no success."""

    wins: tuple[int, ...]
    told: bool = True
    paid: float = 1.0
    lowest: float = 0.0
    plays: Counter[int] = field(default_factory=Counter, init=False, compare=False)

    def tasks(self, split: str):
        return Generated(lambda index: Task("wins", {}, index, split), len(self.wins))

    def make(self, task: Task) -> WinsOnce:
        self.plays[task.seed] += 1
        return WinsOnce(self, self.plays[task.seed] <= self.wins[task.seed])


@dataclass
class WinsOnce:
    world: Wins
    won: bool

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, "Play."),))

    async def step(self, agent: str, action: Message) -> Step:
        pays = self.world.paid if self.won else self.world.lowest
        return Step(None, {agent: pays}, done=True, success=self.won if self.world.told else None)

    async def close(self) -> None: ...


class Longer(Says):
    """Says more each time, so that a penalty on length tells any two plays apart."""

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        self.text += " yes"
        return await super().sample(prompt, params)


async def played(slots: Slots, world: Wins, count: int = 1, reward: Any = None):
    """The tasks of each step's groups, and the source's metrics."""
    made = components(world, Longer())
    made.rewards.reward = reward or Overlong(max_tokens=200, buffer_tokens=200, penalty=0.5)
    source = slots.bind(made, "rl", count)
    taken = [seeds(await source.take(step)) for step in range(count)]
    await source.close()
    return taken, source.metrics()


@pytest.mark.parametrize("told", [True, False])
async def test_a_penalty_gives_a_group_no_signal_where_all_succeed_or_all_fail(told: bool):
    """The rule of DAPO, 0 < correct < G; where the world tells no success, its outcomes without the penalty."""
    world = Wins(wins=(0, 2, 1, 2, 0, 1, 0), told=told)  # a redraw plays the task 4 further on, of 7
    taken, metrics = await played(Slots(width=1, size=2, zero_signal="redraw"), world)
    assert taken == [[5]]  # after tasks 0, 4 and 1
    assert metrics == {"redrawn": 3, "exhausted": 0}
    taken, _ = await played(Slots(width=7, size=2, zero_signal="drop"), Wins(wins=world.wins, told=told))
    assert taken == [[2, 5]]


async def test_what_a_signal_is_can_be_chosen():
    graded = Wins(wins=(1, 1), paid=0.0, lowest=0.0)  # some succeed, and all are paid alike
    for signal, expected in (("success", [0, 1]), ("outcome", []), ("score", [0, 1])):
        taken, _ = await played(Slots(width=2, size=2, zero_signal="drop", signal=signal), replace(graded))
        assert taken == [expected], signal


@pytest.mark.parametrize(
    ("returns", "zero_signal"),
    [
        ([(1.0, -1.0), (1.0, -1.0)], True),  # one seat always wins
        ([(1.0, -1.0), (-1.0, 1.0)], False),
        ([(1.0, 0.0), (1.0, 0.5)], False),  # one seat has a signal
        ([(1.0, -1.0)], True),
        ([], True),
    ],
)
def test_a_group_has_a_signal_where_the_plays_of_a_seat_differ(returns: list[tuple[float, float]], zero_signal: bool):
    """Just where an estimator that compares within seats gives any credit."""
    rng = np.random.default_rng(0)
    plays = [[replace(trajectory(rng), agent=agent) for agent in ("row", "column")] for _ in returns]
    made = Group(0, TASK, tuple(Episode(str(n), TASK, tuple(seats)) for n, seats in enumerate(plays)))
    scores = [score(t, total) for t, total in zip(made.trajectories, chain(*returns), strict=True)]
    assert [has_zero_signal(made, scores, signal) for signal in ("success", "outcome", "score")] == [zero_signal] * 3
    credit = GRPO()([made], [scores], {})[0]
    assert any(tokens.any() for of in credit for tokens in of.tokens) != zero_signal


async def test_a_slot_plays_on_until_a_group_has_a_signal():
    world = Wins(wins=(0,) * 20 + (1,))  # redraws play every task once: task 20 is the last
    taken, metrics = await played(Slots(width=1, size=2, zero_signal="redraw"), world)
    assert taken == [[20]]
    assert metrics["redrawn"] == len(world.plays) - 1 > 2


async def test_a_world_without_a_signal_ends_in_what_was_chosen_and_is_counted():
    for exhausted, expected in (("drop", [[], []]), ("keep", [[1, 2], [0, 1]])):
        slots = Slots(width=2, size=2, zero_signal="redraw", max_redraws=4, exhausted=exhausted)
        taken, metrics = await played(slots, Wins(wins=(0, 0, 0)), 2)
        assert taken == expected
        assert metrics == {"redrawn": 16, "exhausted": 4}
    slots = Slots(width=2, size=2, zero_signal="redraw", max_redraws=4, exhausted="stop")
    with pytest.raises(ConfigError, match=r"slot 0 of stage 'rl' played 5 tasks, .* exhausted = \"drop\""):
        await played(slots, Wins(wins=(0, 0, 0)))


@dataclass
class Outage:
    """Gives no answer for these tasks, as when its server is down, and pays for others as the world does."""

    tasks: set[int]

    async def __call__(self, judged: Group):
        if judged.task.seed in self.tasks:
            raise ConnectionError("the judge is away")
        return await Native()(judged)


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_cache, "FIRST_WAIT_S", 0.0)


@pytest.mark.usefixtures("no_wait")
async def test_an_outage_of_the_reward_does_not_decide_which_task_a_slot_plays():
    slots = Slots(width=2, size=2, zero_signal="redraw", exhausted="stop")
    world = Wins(wins=(0, 1, 1, 1, 1))
    assert await played(slots, world, reward=Outage(set())) == ([[2, 1]], {"redrawn": 1, "exhausted": 0})
    taken, metrics = await played(slots, replace(world), reward=Outage({0}))
    assert taken == [[1]]  # slot 0 has nothing to train, and is not redrawn
    assert metrics == {"redrawn": 0, "exhausted": 1}


@pytest.mark.usefixtures("no_wait")
async def test_an_episode_whose_reward_fails_is_counted_once():
    made = components(Wins(wins=(1,) * 5))
    made.runner.config = replace(made.runner.config, max_error_rate=0.35)
    made.rewards.reward = Outage({0, 1})
    with pytest.raises(InfrastructureError, match="4 of the last 10 episodes failed"):
        await Slots(width=5, size=2).bind(made, "rl", 1).take(0)


@dataclass(frozen=True, kw_only=True)
class Unclosed(Wins):
    """Its plays fail while they are closed, by which they are counted as failures, but trained."""

    def make(self, task: Task) -> WinsOnce:
        return StaysOpen(self, True)


class StaysOpen(WinsOnce):
    async def close(self) -> None:
        raise OSError("busy")


@pytest.mark.usefixtures("no_wait")
async def test_an_episode_is_one_failure_though_both_its_world_and_its_reward_fail():
    made = components(Unclosed(wins=(1, 1)))
    made.runner.config = replace(made.runner.config, max_error_rate=1.0)
    made.rewards.reward = Outage({0})
    await Slots(width=2, size=2).bind(made, "rl", 1).take(0)
    assert made.runner.errors == 4


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (Slots(), 0),  # the penalties differ, and are trained
        (Slots(zero_signal="redraw"), 1),
        (Slots(zero_signal="drop", signal="outcome"), 1),
        (Slots(zero_signal="redraw", signal="score"), 0),
        (Mixed(parts=(Replay(), Slots(zero_signal="redraw"))), 1),
    ],
)
async def test_the_metric_goes_by_the_signal_that_decides_what_is_trained(groups: Any, expected: float):
    made = components(Wins(wins=(0,)), Longer())
    made.rewards.reward = Overlong(max_tokens=200, buffer_tokens=200, penalty=0.5)
    source = Slots(width=1, size=2).bind(made, "rl", 1)
    [group] = await source.take(0)
    scored = ScoredGroup(group, await made.rewards.score(group))
    result = StepResult([], [], {"policy": Update([], [], [], {}, {"version": 1})}, [scored])
    stage = Stage(groups=groups, losses=(PPO(),))
    assert step_metrics(result, made, source, stage, errors_before=0)["zero_signal"] == expected
