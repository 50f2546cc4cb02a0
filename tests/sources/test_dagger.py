"""DAgger: the expert's labels in the states that the policy came to, what is trained of them, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from made_world import Odd, Says, components, renderer, stage_of
from test_origins import RUN
from trained_run import train

from sojourn.credit.constant import Constant
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.losses.nll import NLL
from sojourn.losses.ppo import PPO
from sojourn.protocols import AgentContext
from sojourn.sources.dagger import Dagger
from sojourn.sources.mixed import Mixed
from sojourn.sources.replay import Replay
from sojourn.sources.slots import Slots
from sojourn.types import Message, Observation, Role, Step, Task, Versions


@dataclass(frozen=True, kw_only=True)
class Line(Odd):
    """Three turns, in each of which the expert says where it is: how often "yes" was said. Others fail."""

    def make(self, task: Task) -> LinePlay:  # type: ignore[override]
        return LinePlay(self.lost)


@dataclass
class LinePlay:
    lost: bool
    place: int = 0
    turns: int = 0

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, "Go."),), system=(Message(Role.SYSTEM, "Play."),))

    async def step(self, agent: str, action: Message) -> Step:
        self.place, self.turns = self.place + (action.text == "yes"), self.turns + 1
        if self.turns == 3:
            return Step(None, {agent: 0.0}, done=True, success=False)
        return Step(Observation((Message(Role.USER, f"After {action.text}."),)), {agent: 0.0})

    async def close(self) -> None: ...

    def expert(self) -> str:
        if self.lost:
            raise RuntimeError("the expert lost its way")
        return str(self.place)


def said(text: str) -> list[int]:
    return list(renderer().encode_reply(Message(Role.ASSISTANT, text)))


async def test_the_policys_states_are_labelled_by_the_expert():
    """From the second step on the policy alone acts: it says yes, and the expert would have said 0, 1 and 2."""
    source = Dagger(width=2, beta=0.0).bind(components(Line()), "rl", 2)
    groups = await source.take(1)
    assert [group.origin for group in groups] == ["dagger"] * 2
    for group in groups:
        [trajectory] = group.trajectories
        assert [turn.sample.tokens.tolist() for turn in trajectory.turns] == [said("0"), said("1"), said("2")]
        assert [turn.message and turn.message.text for turn in trajectory.turns] == ["0", "1", "2"]
        assert {turn.sample.versions for turn in trajectory.turns} == {Versions(-1, -1)}
        assert [turn.parent for turn in trajectory.turns] == [-1] * 3
        yes = said("yes")
        for number, turn in enumerate(trajectory.turns):
            assert _count(turn.context.tolist(), yes) == number
    assert source.metrics() == {"expert_agreement": 0.0}


async def test_each_label_is_in_the_context_that_the_policy_saw():
    seen: list[list[int]] = []

    class Keeps(Says):
        async def sample(self, prompt, params):
            seen.append(prompt.tokens.tolist())
            return await super().sample(prompt, params)

    [group] = await Dagger(width=1, beta=0.0).bind(components(Line(), Keeps()), "rl", 2).take(1)
    assert [turn.context.tolist() for turn in group.trajectories[0].turns] == seen


async def test_the_expert_acts_in_the_first_step():
    """It says 0 three times, as it never says yes, and what it did is what it would have done."""
    engine = Says()
    source = Dagger(width=1, beta=0.5).bind(components(Line(), engine), "rl", 1)
    [group] = await source.take(0)
    assert [turn.sample.tokens.tolist() for turn in group.trajectories[0].turns] == [said("0")] * 3
    assert engine.asked == []
    assert source.metrics() == {"expert_agreement": 1.0}


async def test_the_expert_acts_less_from_step_to_step():
    engine = Says()
    source = Dagger(width=40, beta=0.5).bind(components(Line(), engine), "rl", 3)
    counts = []
    for step in range(3):
        await source.take(step)
        counts.append(len(engine.asked) - sum(counts))
    assert counts[0] == 0
    assert 0.35 < counts[1] / 120 < 0.65
    assert 0.6 < counts[2] / 120 < 0.9


async def test_an_expert_that_fails_ends_the_run():
    with pytest.raises(InfrastructureError, match=r"all 2 episodes of step 1 failed; .*the expert lost its way"):
        await Dagger(width=2).bind(components(Line(lost=True)), "rl", 2).take(1)


@dataclass(frozen=True)
class Thinks:
    """An agent that samples twice in a turn."""

    def seat(self, context: AgentContext):
        raise NotImplementedError

    def demonstrated(self, action: Message):
        return [Message(Role.ASSISTANT, "I think."), action]


async def test_what_cannot_be_labelled_or_imitated_is_refused():
    stage = replace(stage_of(components(Line()), "rl"), estimator=Constant(), losses=(NLL(),))
    await Dagger().check(stage)
    with pytest.raises(ConfigError, match="PPO needs the sampler's log-probabilities, which a turn that an expert"):
        await Dagger().check(replace(stage, losses=(PPO(),)))
    with pytest.raises(ConfigError, match=r"Thinks samples several times in a turn, of which dagger would not know"):
        await Dagger().check(replace(stage, agent=Thinks()))
    mute = replace(stage_of(components(Odd(mute=True)), "rl"), estimator=Constant(), losses=(NLL(),))
    with pytest.raises(ConfigError, match=r"has no expert\(\)"):
        await Dagger().check(mute)


async def test_what_was_labelled_may_be_replayed_to_be_imitated():
    stage = replace(stage_of(components(Line()), "rl"), estimator=Constant(), losses=(NLL(),))
    replay = Replay(origins=("dagger",))
    await replay.check(replace(stage, groups=Mixed(parts=(Dagger(), replay))))
    with pytest.raises(ConfigError, match="which what is replayed of dagger does not have"):
        await replay.check(replace(stage, groups=Mixed(parts=(Slots(), replay)), losses=(PPO(),)))


def test_a_run_learns_from_labels_of_all_steps_so_far(tmp_path: Path):
    """The groups of earlier steps come back from the records, and the labels become likelier."""
    parts = '{name="dagger", width=4}, {name="replay", width=4, signal_only=false, origins=["dagger"]}'
    groups = f'stages.rl.groups={{name="mixed", parts=[{parts}]}}'
    imitates = ('stages.rl.estimator={name="constant"}', 'stages.rl.losses=[{name="nll"}]')
    run = train(tmp_path / "run", groups, *imitates, "stages.rl.steps=8", recipe=RUN)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["replayed"] for line in lines] == [0, 0, 4, 4, 4, 4, 4, 4]
    assert np.mean([line["nll"] for line in lines[-2:]]) < np.mean([line["nll"] for line in lines[:2]]) - 0.1
    assert lines[0]["expert_agreement"] == 1
    assert all(line["expert_agreement"] < 1 for line in lines[2:])


def _count(tokens: list[int], part: list[int]) -> int:
    return sum(tokens[n : n + len(part)] == part for n in range(len(tokens)))
