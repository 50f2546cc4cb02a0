"""Semi-online roll-outs: what the world is told, what the policy sees, what is trained of it, and what it is worth."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from made_world import Odd, Says, components, renderer, sampled, stage_of
from test_dagger import Thinks, said
from trained_run import train

from sojourn.errors import ConfigError
from sojourn.same_action import same_action, same_kind
from sojourn.sources.expert_match import matched_returns
from sojourn.sources.semi_online import SemiOnline
from sojourn.types import Ending, Message, Observation, Prompt, Role, SamplingParams, Score, Step, Task, ToolCall, Turn


@dataclass(frozen=True, kw_only=True)
class Path3(Odd):
    """Three turns; the expert says "go 0", "go 1" and "go 2". It wins whoever said the last of these."""

    told: list[str] = field(default_factory=list, compare=False)

    def make(self, task: Task) -> Path3Play:  # type: ignore[override]
        return Path3Play(self.told)


@dataclass
class Path3Play:
    told: list[str]
    turns: int = 0

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, "Go."),), system=(Message(Role.SYSTEM, "Play."),))

    async def step(self, agent: str, action: Message) -> Step:
        self.told.append(action.text)
        self.turns += 1
        if self.turns == 3:
            return Step(None, {agent: 5.0}, done=True, success=action.text == "go 2")
        return Step(Observation((Message(Role.USER, f"After {action.text}."),)), {agent: 5.0})

    async def close(self) -> None: ...

    def expert(self) -> str:
        return f"go {self.turns}"


@dataclass
class Script(Says):
    """Says one text after another, and remembers the prompts."""

    texts: list[str] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)

    async def sample(self, prompt: Prompt, params: SamplingParams):
        self.prompts.append(prompt.tokens.tolist())
        self.text = self.texts[len(self.prompts) - 1]
        return await super().sample(prompt, params)


async def play(*texts: str, patches: int = 2, **keys):
    """Plays one episode; returns its trajectory, the world, the engine and the source."""
    world, engine = Path3(), Script(texts=list(texts))
    source = SemiOnline(width=1, size=1, patches=patches, **keys).bind(components(world, engine), "rl", 1)
    [group] = await source.take(0)
    assert group.origin == "semi_online"
    source.observe([group], [])
    return group.trajectories[0], world, engine, source


async def test_the_experts_action_takes_the_place_of_one_that_differs():
    """Turn 1 differs, though it is of the same kind: the world is told "go 1", and so is the policy; "go 7" is
    trained."""
    trajectory, world, engine, source = await play("go 0", "go 7", "go 2")
    assert world.told == ["go 0", "go 1", "go 2"]
    assert sampled(trajectory) == [said("go 0"), said("go 7"), said("go 2")]
    assert [turn.message and turn.message.text for turn in trajectory.turns] == ["go 0", "go 7", "go 2"]
    assert [trajectory.prompt(number).tolist() for number in range(3)] == engine.prompts
    assert [turn.parent for turn in trajectory.turns] == [-1, 0, -1]
    assert _has(engine.prompts[2], said("go 1"))
    assert not _has(engine.prompts[2], said("go 7"))
    assert all(turn.sample.versions.oldest == 0 for turn in trajectory.turns)
    assert [turn.reward for turn in trajectory.turns] == [1.0, 0.5, 1.0]
    assert [turn.info["matched"] for turn in trajectory.turns] == [1, 0, 1]
    assert (trajectory.ending, trajectory.success) == (Ending.DONE, False)
    assert source.metrics() == {"semi_online_progress": 1 / 3, "semi_online_success": 0, "patched": 1}
    assert source.metrics() == {}


async def test_an_episode_without_a_difference_is_one_context_and_succeeds():
    trajectory, _, _, source = await play("go 0", " go  1", "go 2")
    assert [turn.parent for turn in trajectory.turns] == [-1, 0, 1]
    assert [turn.reward for turn in trajectory.turns] == [1, 1, 1]
    assert trajectory.success
    assert source.metrics() == {"semi_online_progress": 1, "semi_online_success": 1, "patched": 0}


async def test_the_episode_ends_when_its_patches_are_used_up():
    """The policy is not asked again; the world goes on to the end, which tells how long the expert's way is."""
    trajectory, world, engine, source = await play("go 0", "stay", patches=0)
    assert world.told == ["go 0", "go 1", "go 2"]
    assert len(engine.prompts) == 2
    assert sampled(trajectory) == [said("go 0"), said("stay")]
    assert [turn.reward for turn in trajectory.turns] == [1.0, 0.1]
    assert (trajectory.ending, trajectory.success) == (Ending.DONE, False)
    assert source.metrics() == {"semi_online_progress": 1 / 3, "semi_online_success": 0, "patched": 0}


async def test_patches_in_a_row():
    trajectory, _, engine, _ = await play("no", "no", "go 2")
    assert [turn.parent for turn in trajectory.turns] == [-1, -1, -1]
    assert [trajectory.prompt(number).tolist() for number in range(3)] == engine.prompts


async def test_what_cannot_be_read_earns_nothing():
    class Cut(Script):
        """Its second turn ends in the middle of a call."""

        async def sample(self, prompt, params):
            sample = await super().sample(prompt, params)
            if len(self.prompts) != 2:
                return sample
            tokens = np.array(renderer().encode_reply(_calls(ToolCall("go", {"to": 1})))[:-4])
            return replace(sample, tokens=tokens, logprobs=np.zeros(len(tokens), dtype=np.float32))

    world, engine = Path3(), Cut(texts=["go 0", "go 1", "go 2"])
    source = SemiOnline(width=1, size=1).bind(components(world, engine), "rl", 1)
    [group] = await source.take(0)
    assert [turn.reward for turn in group.trajectories[0].turns] == [1, 0, 1]
    assert [turn.info["malformed"] for turn in group.trajectories[0].turns] == [0, 1, 0]
    assert world.told == ["go 0", "go 1", "go 2"]


async def test_rewards_are_those_of_the_config():
    trajectory, *_ = await play("go 0", "go 7", "no", format_reward=0.25, type_reward=0.5, match_reward=2.0)
    assert [turn.reward for turn in trajectory.turns] == [2.75, 0.75, 0.25]


@pytest.mark.parametrize(
    ("min_std", "discount", "kept"), [(0.6, 0.5, 1), (0.65, 0.5, 0), (0.2, 0.0, 1), (0.3, 0.0, 0), (0.3, 1.0, 1)]
)
async def test_a_group_has_a_signal_by_the_spread_of_its_first_returns(min_std: float, discount: float, kept: int):
    """One episode has 1 + 0.5 + 0.25 from its first turn on; the other differs there, and has 0.5, whatever follows.
    So the standard deviation is 0.625; without what follows it is 0.25."""
    source = SemiOnline(width=1, size=2, zero_signal="drop", min_std=min_std, discount=discount)
    groups = await source.bind(components(Path3(), OnceWrong()), "rl", 1).take(0)
    assert len(groups) == kept


@dataclass
class OnceWrong(Says):
    """Does what the expert does, except in the first turn of the first episode that asks."""

    was_wrong: bool = False

    async def sample(self, prompt: Prompt, params: SamplingParams):
        turn = sum(_has(prompt.tokens.tolist(), said(f"go {number}")) for number in range(3))
        self.text = f"go {turn}" if turn or self.was_wrong else "go 7"
        self.was_wrong = True
        return await super().sample(prompt, params)


def test_returns_end_at_a_difference():
    """A turn that differs has its own reward, and gives none of it to those before."""
    turns = [Turn(-1, np.zeros(0), None, None, info={"matched": m}) for m in (1, 1, 0, 1)]  # type: ignore[arg-type]
    score = Score(np.array([1, 1, 0.5, 1], dtype=np.float32))
    assert matched_returns(turns, score, 0.5).tolist() == [1.5, 1, 0.5, 1]
    unmatched = [replace(turn, info={}) for turn in turns]
    assert matched_returns(unmatched, score, 0.5).tolist() == [1.75, 1.5, 1, 1]


def _calls(*calls: ToolCall, text: str = "") -> Message:
    return Message(Role.ASSISTANT, text, calls=calls)


def test_calls_are_compared_by_name_and_arguments():
    one, same = _calls(ToolCall("click", {"id": 3}, "a")), _calls(ToolCall("click", {"id": 3}, "b"), text="So:")
    other, none = _calls(ToolCall("click", {"id": 4})), Message(Role.ASSISTANT, "click(3)")
    assert same_action(one, same)
    assert not same_action(one, other)
    assert not same_action(one, none)
    assert same_kind(one, other)
    assert same_kind(one, none)
    assert not same_kind(one, _calls(ToolCall("type", {"id": 3})))
    assert same_kind(Message(Role.ASSISTANT, "click(3)"), Message(Role.ASSISTANT, "click(id=4)"))
    assert not same_kind(Message(Role.ASSISTANT, "take key"), Message(Role.ASSISTANT, ""))


async def test_what_cannot_be_compared_is_refused():
    stage = stage_of(components(Path3()), "rl")
    await SemiOnline().check(stage)
    with pytest.raises(ConfigError, match="Thinks samples several times in a turn, of which semi_online would not"):
        await SemiOnline().check(replace(stage, agent=Thinks()))
    with pytest.raises(ConfigError, match=r"stage 'rl' compares the policy with an expert, but .* has no expert\(\)"):
        await SemiOnline().check(stage_of(components(Odd(mute=True)), "rl"))
    with pytest.raises(ValueError, match=r'min_std = 0.3 with zero_signal = "keep", which trains all groups'):
        SemiOnline(min_std=0.3)


def test_a_run_comes_closer_to_the_expert(tmp_path: Path):
    """Without the world's reward, which is never looked at."""
    groups = 'stages.rl.groups={name="semi_online", width=4, size=8, patches=3}'
    learns = ('stages.rl.estimator={name="ui_s1"}', "stages.rl.optim.lr=3e-3", "stages.rl.steps=10")
    run = train(tmp_path / "run", groups, *learns)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    progress = [line["semi_online_progress"] for line in lines if "semi_online_progress" in line]
    assert len(progress) == 10
    own = [line for line in lines if "semi_online_progress" in line]
    assert all(line["success"] == line["semi_online_success"] for line in own)
    assert all(line["reward"] > 0 for line in own)
    assert np.mean(progress[-4:]) > np.mean(progress[:3]) + 0.1


def _has(tokens: list[int], part: list[int]) -> bool:
    return any(tokens[n : n + len(part)] == part for n in range(len(tokens)))
