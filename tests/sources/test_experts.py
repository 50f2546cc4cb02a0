"""Demonstrations: how many distinct ones, which are kept, and what is said where there are none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from made_world import Odd, Play, components, renderer, sampled, seeds, stage_of

from sojourn.agents.plain import Plain, PlainSeat
from sojourn.credit.constant import Constant
from sojourn.errors import BudgetError, ConfigError, InfrastructureError
from sojourn.protocols import Agent, AgentContext
from sojourn.rollout.runner import Rollout
from sojourn.sources.context import StageContext
from sojourn.sources.experts import Experts, ExpertSampler
from sojourn.train.assemble import Components
from sojourn.types import Message, Observation, Prompt, Role, SamplingParams, Stop, Task


async def test_distinct_demonstrations_are_played_once_and_come_round_again():
    world = Odd()
    experts = Experts(width=2, distinct_tasks=3, success_only=False)
    source = experts.bind(components(world), "warmup", 3)
    taken = [await source.take(step) for step in range(3)]
    assert [seeds(groups) for groups in taken] == [[0, 1], [2, 0], [1, 2]]
    assert taken[1][1] is taken[0][0]
    assert world.plays == {0: 1, 1: 1, 2: 1}
    assert (experts.tasks(1), experts.tasks(9)) == (2, 3)


async def test_a_step_wider_than_the_distinct_ones_has_each_once():
    source = Experts(width=8, distinct_tasks=3, success_only=False).bind(components(Odd()), "warmup", 1)
    assert seeds(await source.take(0)) == [0, 1, 2]


async def test_a_later_stage_has_other_tasks():
    source = Experts(width=2, distinct_tasks=3, success_only=False).bind(components(Odd()), "warmup", 2, first=40)
    assert [seeds(await source.take(step)) for step in range(2)] == [[40, 41], [42, 40]]


async def test_a_demonstration_is_what_the_model_would_have_sampled():
    [group] = await Experts(width=1, success_only=False).bind(components(Odd()), "warmup", 1).take(0)
    [trajectory] = group.trajectories
    assert sampled(trajectory) == [list(renderer().encode_reply(Message(Role.ASSISTANT, "yes")))]
    assert trajectory.turns[0].sample.versions == (-1, -1)


async def test_only_successful_ones_are_kept_when_asked():
    source = Experts(width=4, success_only=True).bind(components(Odd()), "warmup", 1)
    assert seeds(await source.take(0)) == [1, 3]


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (Odd(paying=False), "none of 3 demonstrations can be used: the experts did not succeed"),
        (Odd(lost=True), "none of 3 demonstrations can be used: RuntimeError: the expert lost its way"),
    ],
)
async def test_where_none_can_be_used_the_cause_is_said(world: Odd, said: str):
    with pytest.raises(ConfigError, match=said):
        await Experts(width=3).bind(components(world), "warmup", 1).take(0)


async def test_full_contexts_are_not_blamed_on_the_experts():
    parts = components(Odd())
    parts.runner.max_context = 4
    with pytest.raises(ConfigError, match=r"used: 3 of them filled the context: raise backend\.max_context"):
        await Experts(width=3).bind(parts, "warmup", 1).take(0)


async def test_a_demonstration_that_failed_is_left_out_even_when_all_are_wanted():
    with pytest.raises(ConfigError, match="the expert lost its way"):
        await Experts(width=1, success_only=False).bind(components(Odd(lost=True)), "warmup", 1).take(0)


async def test_a_world_without_an_expert_is_refused():
    with pytest.raises(
        ConfigError, match=r"stage 'warmup' clones demonstrations, but the world 'odd' has no expert\(\)"
    ):
        await Experts(width=2).check(stage_of(components(Odd(mute=True)), "warmup"))
    with pytest.raises(BaseExceptionGroup) as caught:
        await Experts(width=2).bind(components(Odd(mute=True)), "warmup", 1).take(0)
    assert caught.group_contains(ConfigError, match=r"the world has no expert\(\): demonstrations need one")


async def test_a_demonstration_that_the_model_could_not_say_is_refused():
    made = components(Odd())
    object.__setattr__(made.recipe.sampling, "max_tokens", 1)
    with pytest.raises(BaseExceptionGroup) as caught:
        await Experts(width=2).bind(made, "warmup", 1).take(0)
    assert caught.group_contains(ConfigError, match=r"the expert's action has \d+ tokens, 'yes'.* allow 1:")


async def test_an_action_without_room_in_a_context_that_had_room_before_ends_the_demonstration():
    world = Odd()
    sampler = ExpertSampler(world.make(world.tasks("train")[0]), renderer(), Plain())
    prompt = Prompt(np.array([1]))
    sample = await sampler.sample(prompt, SamplingParams(max_tokens=50))
    assert sample.stop is Stop.END
    with pytest.raises(BudgetError, match=r"the expert's action has \d+ tokens, the context room for 1"):
        await sampler.sample(prompt, SamplingParams(max_tokens=1))


@dataclass(frozen=True, kw_only=True)
class Flaky(Odd):
    """The first play of task 1 breaks, with its retries."""

    broken: int = 1 + Rollout().retries

    def make(self, task: Task) -> Play:
        play = super().make(task)
        if task.seed == 1 and self.plays[1] <= self.broken:
            raise InfrastructureError("the browser died")
        return play


async def test_a_demonstration_that_the_world_broke_is_played_again_when_its_turn_comes_round():
    world = Flaky()
    source = Experts(width=2, distinct_tasks=2, success_only=False).bind(components(world), "warmup", 3)
    assert [seeds(await source.take(step)) for step in range(3)] == [[0], [0, 1], [0, 1]]
    assert world.plays == {0: 1, 1: world.broken + 1}


@dataclass(frozen=True)
class Planner:
    """An agent that samples a plan, and then the action, in each turn."""

    def seat(self, context: AgentContext) -> PlannerSeat:
        return PlannerSeat(Plain(), context)


class PlannerSeat(PlainSeat):
    async def act(self, observation: Observation, state: str | None = None) -> Message:
        plan = await super().act(observation, state)
        return await super().act(Observation((Message(Role.USER, f"Do it: {plan.text}"),)), state)


class DemonstratingPlanner(Planner):
    def demonstrated(self, action: Message) -> tuple[Message, Message]:
        return Message(Role.ASSISTANT, f"I will say {action.text}."), action


async def test_an_agent_that_samples_twice_a_turn_is_refused_before_the_run_begins():
    made = components(Odd())
    await Experts(width=2).check(imitating(made, made.recipe.agent))
    with pytest.raises(
        ConfigError, match=r"'warmup' clones .* Planner samples 2 times in a turn.*demonstrated\(action\)"
    ):
        await Experts(width=2).check(imitating(made, Planner()))
    await Experts(width=2).check(imitating(made, DemonstratingPlanner()))


async def test_an_agent_that_says_what_its_turns_are_made_of_is_warmed_up():
    made = components(Odd())
    made.runner.agent = DemonstratingPlanner()
    object.__setattr__(made.recipe.sampling, "max_tokens", 32)
    [group] = await Experts(width=1, success_only=False).bind(made, "warmup", 1).take(0)
    [trajectory] = group.trajectories
    assert [turn.message and turn.message.text for turn in trajectory.turns] == ["I will say yes.", "yes"]


def imitating(made: Components, agent: Agent) -> StageContext:
    return replace(stage_of(made, "warmup"), agent=agent, estimator=Constant())
