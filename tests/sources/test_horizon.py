"""Horizons: the budgets of each step's episodes, which are decided when a slot starts and kept over a restart."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from made_world import components

from sojourn.agents.plain import Plain
from sojourn.envs.toy import Toy
from sojourn.record import checkpoint
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout
from sojourn.schedules import Constant, Linear, Stairs
from sojourn.sources.horizon import Budget, Horizon
from sojourn.sources.slots import LiveSlots, Slots
from sojourn.types import Ending, Group, Prompt, Sample, SamplingParams, Stop, Versions

TOY = Toy(rooms=4, side_rooms=4, doors=3, choices=True)  # nobody wanders to its treasure within 9 turns
STAIRS = Stairs(factors=(0.34, 0.7, 1.0), every=2)


@dataclass
class Wanders:
    """In the engine's place: one of the possible actions, by the seed."""

    asked: list[SamplingParams] = field(default_factory=list)

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        self.asked.append(params)
        said = params.choices[np.random.default_rng(params.seed).integers(len(params.choices))]
        tokens, logprobs = np.array(said, dtype=np.int64), np.full(len(said), -1.5, dtype=np.float32)
        return Sample(tokens, logprobs, Versions(0, 0), Stop.CHOICE)

    async def score(self, prompt: Prompt) -> None:
        raise NotImplementedError


def source(sampler: Wanders | None = None, steps: int = 6, **options) -> LiveSlots:
    made = components(TOY, sampler or Wanders())
    made.runner.agent, made.runner.max_context = Plain(choices=True), 4096
    made.runner.config = Rollout(limits=Limits(turns=9))
    return Slots(**{"width": 2, "size": 2, "horizon": STAIRS, **options}).bind(made, "rl", steps)


def lengths(groups: list[Group]) -> set[int]:
    trajectories = [t for group in groups for t in group.trajectories]
    assert {t.ending for t in trajectories} == {Ending.TURNS}
    return {len(t.turns) for t in trajectories}


def test_stairs_keep_each_factor_for_as_many_steps():
    assert [STAIRS(step, 100) for step in (0, 1, 2, 3, 4, 5, 99)] == [0.34, 0.34, 0.7, 0.7, 1, 1, 1]
    warming = Stairs(factors=(0.5, 1.0), every=2, warmup=3)
    assert [warming(step, 100) for step in range(4)] == [0.125, 0.25, 0.75, 1]


def test_a_budget_is_a_fraction_rounded_up_and_never_nothing_or_more_than_all():
    horizon = Horizon(Stairs(factors=(0.34, 0.1, 2.0), every=1), Linear(final=0.5), 0.0, Budget(9, 200), 4)
    assert [horizon.budget(step) for step in range(3)] == [(4, 200), (1, 175), (9, 150)]
    exact = Horizon(Stairs(factors=(0.07,)), Constant(), 0.0, Budget(100, 1), 1)  # 0.07 * 100 is a bit above 7
    assert exact.budget(0) == (7, 1)
    thirds = Horizon(Stairs(factors=(1 / 3, 2 / 3), every=1), Constant(warmup=3), 0.0, Budget(9, 200), 4)
    assert [thirds.budget(step) for step in range(2)] == [(3, 50), (6, 100)]


async def test_episodes_of_later_steps_may_take_more_turns():
    slots, taken, told = source(), [], []
    for step in range(6):
        taken.append(lengths(await slots.take(step)))
        told.append(slots.metrics())
    assert taken == [{4}, {4}, {7}, {7}, {9}, {9}]
    assert [metrics["horizon_turns"] for metrics in told] == [4, 4, 7, 7, 9, 9]
    await slots.close()


async def test_without_a_horizon_episodes_have_the_whole_budget():
    slots = source(horizon=Constant())
    assert lengths(await slots.take(0)) == {9}
    assert not slots.metrics()
    await slots.close()


async def test_turns_of_later_steps_may_have_more_tokens():
    sampler = Wanders()
    slots = source(sampler, token_horizon=Stairs(factors=(0.5, 1.0), every=1))
    for step in range(2):
        await slots.take(step)
        assert {params.max_tokens for params in sampler.asked} == {4 if step == 0 else 8}
        assert slots.metrics()["horizon_tokens"] == (4 if step == 0 else 8)
        sampler.asked.clear()
    await slots.close()


async def test_with_lag_a_slot_has_the_budget_of_its_own_step():
    slots = source(max_lag=3)
    assert [lengths(await slots.take(step)) for step in range(5)] == [{4}, {4}, {7}, {7}, {9}]
    await slots.close()


def won(slots: LiveSlots, groups: list[Group], successes: int) -> None:
    """Tells the source that so many of four episodes succeeded."""

    @dataclass(frozen=True)
    class Played:
        origin: str
        trajectories: list[object]

    @dataclass(frozen=True)
    class Outcome:
        success: bool

    played = Played("policy", [Outcome(number < successes) for number in range(4)])
    shown = Played("experts", [Outcome(True)] * 20)
    slots.observe([played, shown], [])  # type: ignore[list-item]


async def test_with_a_goal_the_horizon_grows_with_the_steps_that_reach_it():
    slots, taken = source(horizon_goal=0.75), []
    for step, successes in enumerate((2, 3, 4, 0, 3, 0)):
        groups = await slots.take(step)
        taken.append(lengths(groups))
        won(slots, groups, successes)
    assert taken == [{4}, {4}, {4}, {7}, {7}, {7}]  # two steps reached the goal, then one more
    await slots.close()


async def test_a_restart_keeps_the_budget_of_slots_that_began_and_the_clock(tmp_path):
    slots = source(horizon_goal=0.5, max_lag=1)
    won(slots, await slots.take(0), 4)  # those of step 1 have begun with the first budget
    won(slots, [], 4)
    saved = checkpoint.save(tmp_path, 1, lambda path: None, {"groups": slots.state()})
    await slots.close()
    resumed = source(horizon_goal=0.5, max_lag=1)
    resumed.restore(saved.state()["groups"])
    assert [lengths(await resumed.take(step)) for step in (1, 2)] == [{4}, {7}]
    await resumed.close()


def test_a_goal_without_a_horizon_is_refused():
    with pytest.raises(ValueError, match=r"horizon_goal = 0.5 without a horizon that grows: say how"):
        Slots(horizon_goal=0.5)
