"""Recorded episodes with the returns that they got: what is shown, what is kept, and that asking then matters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_world import Odd, Says, components, stage_of

from sojourn.agents.balance_conditioned import BalanceConditioned
from sojourn.agents.plain import Plain
from sojourn.agents.return_conditioned import ReturnConditioned
from sojourn.backends.torch.models.tiny import build_tokenizer
from sojourn.errors import ConfigError
from sojourn.record.episodes.store import EpisodeStore
from sojourn.sources.earlier import Earlier
from sojourn.sources.imported import Imported
from sojourn.sources.retold import Retold, RetoldGroups
from sojourn.sources.slots import Slots
from sojourn.sources.with_balances import WithBalances
from sojourn.sources.with_returns import WithReturns
from sojourn.types import Group, Message, Observation, Prompt, Role, Sample, SamplingParams, Step, Task

CONFIG = WithReturns(base=Earlier(stage="rl", width=1))


@dataclass(frozen=True, kw_only=True)
class Arms(Odd):
    """Two pulls; "red" pays 0.5 each time, anything else nothing. `luck` is added to the pay of every later play."""

    luck: float = 0.0

    def make(self, task: Task) -> ArmsPlay:  # type: ignore[override]
        return ArmsPlay(self.luck)


@dataclass
class ArmsPlay:
    luck: float
    pulls: int = 0

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, "Pull."),), system=(Message(Role.SYSTEM, "Play."),))

    async def step(self, agent: str, action: Message) -> Step:
        self.pulls += 1
        reward = {agent: 0.5 * (action.text == "red") + self.luck}
        if self.pulls == 2:
            return Step(None, reward, done=True)
        return Step(Observation((Message(Role.USER, "Again."),)), reward)

    async def close(self) -> None: ...


@dataclass
class Chance(Says):
    """In the engine's place: says "red" or "blue" by the seed of the turn."""

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        self.text = "red" if np.random.default_rng(params.seed).random() < 0.5 else "blue"
        return await super().sample(prompt, params)


def as_text(tokens: Any) -> str:
    return build_tokenizer().decode(np.asarray(tokens).tolist())


async def recorded(folder: Path, agent: Any, config: Retold = CONFIG) -> RetoldGroups:
    """The source after one step of a live group of eight episodes."""
    made = components(Arms(), Chance())
    made.runner.agent = agent
    made.episodes = EpisodeStore(folder, write=True)
    slots = Slots(width=1, size=8).bind(made, "rl", 1)
    groups = await slots.take(0)
    scores = await made.rewards(groups)
    await asyncio.to_thread(made.episodes.append, "rl", 0, groups, scores)
    await slots.close()
    made.rewards.clear()
    return config.bind(made, "clone", 9)


def red(group: Group) -> list[int]:
    return [sum(t.message.text == "red" for t in one.turns if t.message) for one in group.trajectories]


async def test_each_episode_is_shown_what_it_got(tmp_path: Path):
    """The eight episodes pull "red" never, once and twice, and so got 0, 0.5 and 1; they were asked for 1."""
    source = await recorded(tmp_path, ReturnConditioned())
    [group] = await source.take(0)
    [played] = [g for g in source.context.episodes.groups("rl") if g.slot == 0]
    assert set(red(group)) == {0, 1, 2}
    for new, old, count in zip(group.trajectories, played.trajectories, red(played), strict=True):
        assert f"Play. Return: {count / 2:g}.<|im_end|>" in as_text(new.prompt(1))
        assert as_text(old.prompt(1)).replace("Return: 1.", f"Return: {count / 2:g}.") == as_text(new.prompt(1))
        assert [t.sample.tokens.tolist() for t in new.turns] == [t.sample.tokens.tolist() for t in old.turns]
        assert [t.sample.logprobs.tolist() for t in new.turns] == [t.sample.logprobs.tolist() for t in old.turns]
    [scores] = await source.context.rewards([group])
    assert [score.total for score in scores] == [count / 2 for count in red(group)]
    assert source.context.rewards.pop([group], below=9) == []
    assert group.origin == "earlier"
    assert source.metrics() == {"returns_shown": 8.0, "returns_refused": 0.0}
    again = await source.take(1)
    assert [e.id for e in again[0].episodes] == [e.id for e in group.episodes]


async def test_with_to_go_each_turn_is_shown_what_was_still_to_come(tmp_path: Path):
    source = await recorded(tmp_path, ReturnConditioned(to_go=True))
    [group] = await source.take(0)
    for trajectory in group.trajectories:
        first, second = (turn.reward for turn in trajectory.turns)
        assert f"Pull. Return: {first + second:g}.<" in as_text(trajectory.prompt(0))
        assert f"Again. Return: {second:g}.<" in as_text(trajectory.prompt(1))


async def test_what_takes_another_course_is_left_out(tmp_path: Path):
    source = await recorded(tmp_path, ReturnConditioned())
    source.context.runner.family = Arms(luck=0.25)
    assert await source.take(0) == []
    assert source.metrics() == {"returns_shown": 0.0, "returns_refused": 8.0}


async def test_each_episode_is_told_a_balance_anew_whenever_it_is_taken(tmp_path: Path):
    """The text and the number of a turn agree; what was played, and what it got, stay."""
    source = await recorded(tmp_path, BalanceConditioned(), WithBalances(base=Earlier(stage="rl", width=1)))
    told: list[list[float]] = []
    for step in range(6):
        [group] = await source.take(step)
        told.append([t.turns[0].info["balance"] for t in group.trajectories])
        for trajectory, balance in zip(group.trajectories, told[-1], strict=True):
            assert [turn.info["balance"] for turn in trajectory.turns] == [balance] * 2
            assert f"Play. Balance: {balance:g}.<|im_end|>" in as_text(trajectory.prompt(1))
        [scores] = await source.context.rewards([group])
        assert [score.total for score in scores] == [count / 2 for count in red(group)]
        source.context.rewards.clear()
    assert {balance for balances in told for balance in balances} == {0.0, 1.0, 3.0, 10.0}
    assert all(len(set(one)) > 1 for one in zip(*told, strict=True))  # each episode, over the steps
    again = WithBalances(base=Earlier(stage="rl", width=1)).bind(source.context, "clone", 9)
    assert [t.turns[0].info["balance"] for t in (await again.take(2))[0].trajectories] == told[2]
    assert source.metrics() == {"balances_shown": 48.0, "balances_refused": 0.0}


async def test_balances_are_told_by_their_agent_alone():
    stage = replace(stage_of(components(Arms()), "clone"), earlier={"rl": Slots()})
    config = WithBalances(base=Earlier(stage="rl", width=1))
    await config.check(replace(stage, agent=BalanceConditioned()))
    with pytest.raises(ConfigError, match=r"the agent is ReturnConditioned: set agent = .* 'balance_conditioned'"):
        await config.check(replace(stage, agent=ReturnConditioned()))


async def test_it_needs_an_agent_that_can_be_told_and_recorded_episodes():
    stage = replace(stage_of(components(Arms()), "clone"), earlier={"rl": Slots()})
    await CONFIG.check(replace(stage, agent=ReturnConditioned()))
    with pytest.raises(ConfigError, match="the agent is Plain: set agent"):
        await CONFIG.check(replace(stage, agent=Plain()))
    with pytest.raises(ValueError, match="name a source of recorded ones"):
        WithReturns(base=Slots())
    with pytest.raises(ValueError, match="base is imported: its conversations may be of any world"):
        WithReturns(base=Imported(files=("episodes.jsonl",)))

    class Two(Arms):
        seats = ("one", "two")

    with pytest.raises(ConfigError, match="has the seats one, two"):
        await CONFIG.check(replace(stage, agent=ReturnConditioned(), env=Two()))
