"""What a world answers is checked where it enters an episode: nonsense stops every user with one sentence."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from made_world import Says, components, renderer

from sojourn.agents.plain import Plain
from sojourn.errors import ConfigError, WorldError, leaf
from sojourn.rewards.native import Native
from sojourn.rewards.reward_cache import RewardCache
from sojourn.rollout.runner import Rollout, Runner
from sojourn.train.evaluate import evaluate
from sojourn.types import Message, Observation, Role, SamplingParams, Step, Task

SHOWN = Observation((Message(Role.USER, "Say yes."),))


@dataclass
class World:
    """One turn, which the world answers with `answer`."""

    answer: Any
    first: Any = SHOWN
    made: int = 0

    def tasks(self, split: str) -> list[Task]:
        return [Task("odd", {}, 0, split)]

    def make(self, task: Task) -> "World":
        self.made += 1
        return self

    async def start(self) -> Observation:
        return self.first

    async def step(self, agent: str, action: Message) -> Step:
        return self.answer

    async def close(self) -> None: ...


def paid(reward: Any, **more: Any) -> Step:
    return Step(None, {"agent": reward}, done=True, **more)


WRONG = {
    "nan": (paid(math.nan), "gives seat 'agent' the reward nan: expected a finite number"),
    "infinite": (paid(-math.inf), "gives seat 'agent' the reward -inf: expected a finite number"),
    "numpy": (paid(np.float32("nan")), "gives seat 'agent' the reward np.float32(nan): expected a finite number"),
    "beyond 32 bits": (paid(1e39), "gives seat 'agent' the reward 1e+39: expected a finite number"),
    "beyond 64 bits": (paid(10**400), "gives seat 'agent' the reward 1000"),
    "beyond print": (paid(10**5000), "gives seat 'agent' the reward a huge number"),
    "text": (paid("1"), "gives seat 'agent' the reward '1': expected a finite number"),
    "nothing": (paid(None), "gives seat 'agent' the reward None: expected a finite number"),
    "complex": (paid(1j), "gives seat 'agent' the reward 1j: expected a finite number"),
    "nobody": (Step(None, {"agnet": 1.0}, done=True), "gives the reward 1.0 to seat 'agnet', but its seats are agent"),
    "rewards": (Step(None, 1.0, done=True), "gives the rewards 1.0: expected numbers by name"),  # type: ignore
    "info": (paid(1.0, info={"steps": math.nan}), "gives the info 'steps' = nan: expected a finite number"),
    "words": (paid(1.0, info={"steps": "many"}), "gives the info 'steps' = 'many': expected a finite number"),
    "success": (paid(1.0, success=0.5), "gives success = 0.5: expected True, False, or None"),
    "success text": (paid(1.0, success="no"), "gives success = 'no': expected True, False, or None"),
    "no step": (None, "returns None for an action: expected a Step"),
    "no observation": (Step("again"), "returns 'again' as an observation: expected an Observation"),  # type: ignore
    "stranger": (
        Step(replace(SHOWN, agent="white")),
        "returns an observation for seat 'white', but its seats are agent",
    ),
}


def playing(world: World) -> Runner:
    return Runner(Rollout(), world, Plain(), renderer(), Says(), 512, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WRONG)
async def test_nonsense_stops_training_and_evaluation_alike_and_is_not_tried_again(name) -> None:
    answer, told = WRONG[name]
    world = World(answer)
    with pytest.raises(WorldError) as caught:
        await playing(world).play_episode(world.tasks("train")[0], SamplingParams(8), "x")
    assert str(caught.value).startswith(f"the world 'odd' {told}")
    assert world.made == 1
    with pytest.raises(ExceptionGroup) as group:
        await evaluate(components(World(answer)), "before")
    assert isinstance(leaf(group.value), WorldError)
    assert str(leaf(group.value)).startswith(f"the world 'odd' {told}")


async def test_a_start_that_shows_nothing_stops_too() -> None:
    with pytest.raises(WorldError, match="returns None as an observation: expected an Observation"):
        await playing(world := World(paid(1.0), None)).play_episode(world.tasks("train")[0], SamplingParams(8), "x")


@pytest.mark.parametrize("reward", [1, True, 1.0, np.float32(1), np.int64(1), np.bool_(True), Fraction(1)], ids=type)
async def test_every_finite_number_is_a_reward(reward) -> None:
    world = World(paid(reward, success=np.bool_(True), info={"n": np.int32(3)}))
    episode = await playing(world).play_episode(world.tasks("train")[0], SamplingParams(8), "x")
    [turn] = episode.trajectories[0].turns
    assert (turn.reward, type(turn.reward), dict(turn.info)) == (1.0, float, {"success": 1.0, "n": 3.0})
    assert {type(value) for value in turn.info.values()} == {float}


async def test_scores_that_are_not_finite_stop_an_evaluation_as_they_stop_training() -> None:
    made = components(World(paid(1.0)))
    made.rewards = RewardCache(Native(scale=math.nan))
    with pytest.raises(ConfigError, match=r"the reward of turn 0 of episode .* is nan"):
        await evaluate(made, "before")
