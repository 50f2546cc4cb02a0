"""Groups that go on from before a failure: what is played again, what is trained, and what is kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from made_world import Odd, Says, components, stage_of

from sojourn.checks.played import saved
from sojourn.checks.synthetic import FORKED, content, trajectory
from sojourn.errors import ConfigError
from sojourn.record.episodes.store import EpisodeStore
from sojourn.sources.failure_restarts import FailureRestartGroups, FailureRestarts
from sojourn.sources.segments import segment
from sojourn.sources.slots import Slots
from sojourn.types import Group, Message, Observation, Prompt, Role, SamplingParams, Step, Task

TURNS = 5


@dataclass(frozen=True, kw_only=True)
class Long(Odd):
    """Five turns, each of which shows what was said so far; even tasks are lost, odd ones are won."""

    def make(self, task: Task) -> LongPlay:  # type: ignore[override]
        return LongPlay(task.seed % 2 == 1)


@dataclass
class LongPlay:
    wins: bool
    said: list[str] = field(default_factory=list)

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, "Go."),), system=(Message(Role.SYSTEM, "Play."),))

    async def step(self, agent: str, action: Message) -> Step:
        self.said.append(action.text)
        rewards = {agent: 1.0 if len(self.said) == 1 else 0.25}
        if len(self.said) == TURNS:
            return Step(None, rewards, done=True, success=self.wins)
        return Step(Observation((Message(Role.USER, " ".join(self.said)),)), rewards)

    async def close(self) -> None: ...


@dataclass
class Varies(Says):
    """In the engine's place: says "no" in the plays of some seeds, and notes what it was asked."""

    prompts: list[list[int]] = field(default_factory=list)

    async def sample(self, prompt: Prompt, params: SamplingParams):
        self.prompts.append(prompt.tokens.tolist())
        self.text = "no" if params.seed % 2 else "yes"
        return await super().sample(prompt, params)


async def played(folder: Path, config: FailureRestarts, steps: int) -> tuple[FailureRestartGroups, list[list[Group]]]:
    """The source after some steps of two live groups each, and what it gave in them."""
    made = components(Long(), Varies())
    made.episodes = EpisodeStore(folder, write=True)
    source, slots = config.bind(made, "rl", 9), Slots(width=2, size=3).bind(made, "rl", 9)
    given = []
    for step in range(steps):
        given.append(await source.take(step))
        groups = await slots.take(step)
        scores = await made.rewards(groups)
        source.observe(groups, scores)
        await asyncio.to_thread(made.episodes.append, "rl", step, groups, scores)
    await slots.close()
    return source, given


def texts(group: Group) -> list[list[str]]:
    return [[turn.message.text for turn in t.turns if turn.message] for t in group.trajectories]


async def test_a_group_goes_on_from_before_a_failure(tmp_path: Path):
    """Two of five turns are new: the other three are the recorded ones, and are in the context alone."""
    source, given = await played(tmp_path, FailureRestarts(width=1, size=4), 2)
    assert given == [[], []]
    engine = source.context.runner.sampler
    assert isinstance(engine, Varies)
    engine.prompts.clear()
    [group] = await source.take(2)
    [failed] = [g for g in source.context.episodes.groups("rl") if g.slot == 0]
    assert group.origin == "failure_restarts"
    assert group.task == failed.task
    assert [len(t.turns) for t in group.trajectories] == [2] * 4
    assert [[turn.parent for turn in t.turns] for t in group.trajectories] == [[-1, 0]] * 4
    recorded = failed.trajectories[0]
    firsts = [t.turns[0].context.tolist() for t in group.trajectories]
    assert firsts == [recorded.prompt(3).tolist()] * 4
    assert sorted(engine.prompts) == sorted(t.prompt(n).tolist() for t in group.trajectories for n in (0, 1))
    assert [t.reward for t in group.trajectories] == [0.5] * 4
    assert len({tuple(said) for said in texts(group)}) == 2
    assert source.metrics() == {"restart_success": 0.0}


async def test_only_failures_with_turns_enough_are_kept(tmp_path: Path):
    source, _ = await played(tmp_path, FailureRestarts(turns_before=2), 3)
    assert source.entries["slot"].tolist() == [0, 2, 4]  # the odd tasks are won
    assert source.entries["turn"].tolist() == [3] * 3
    short, _ = await played(tmp_path / "short", FailureRestarts(turns_before=TURNS), 1)
    assert len(short.entries) == 0
    few, _ = await played(tmp_path / "few", FailureRestarts(capacity=2), 3)
    assert few.entries["slot"].tolist() == [2, 4]


async def test_a_failure_is_used_so_often_and_no_more(tmp_path: Path):
    source, _ = await played(tmp_path, FailureRestarts(width=2, size=2, max_uses=3), 2)
    used = Counter([group.slot for step in range(2, 8) for group in await source.take(step)])
    assert used[0] == 3  # alone in step 2, as the other is too young
    assert used[2] == 3
    assert len(source.entries) == 0


async def test_it_resumes_with_what_it_kept(tmp_path: Path):
    config = FailureRestarts(width=1, size=2, max_uses=3)
    source, _ = await played(tmp_path, config, 3)
    other = config.bind(source.context, "rl", 9)
    other.restore(saved(source.state()))
    for step in (4, 5, 6):
        ours, theirs = await source.take(step), await other.take(step)
        assert [(g.slot, content([e.trajectories for e in g.episodes])) for g in ours] == [
            (g.slot, content([e.trajectories for e in g.episodes])) for g in theirs
        ]


async def test_a_world_that_answers_differently_is_played_from_there(tmp_path: Path):
    """Of the recorded turns only those are played again whose prompts are the same."""
    source, _ = await played(tmp_path, FailureRestarts(width=1, size=1), 2)
    first = LongPlay.start

    async def other(self: LongPlay) -> Observation:
        shown = await first(self)
        return Observation((Message(Role.USER, "Go now."),), system=shown.system)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LongPlay, "start", other)
        [group] = await source.take(2)
    assert [len(t.turns) for t in group.trajectories] == [TURNS]


def test_a_segment_keeps_prompts_and_forks():
    whole = trajectory(np.random.default_rng(0), FORKED)  # parents -1, 0, 0, 1, 2
    cut = segment(whole, 2)
    assert [turn.parent for turn in cut.turns] == [-1, -1, 0]
    for number, turn in enumerate(cut.turns):
        assert np.array_equal(cut.prompt(number), whole.prompt(number + 2))
        assert turn.sample is whole.turns[number + 2].sample


async def test_alone_it_is_refused():
    stage = stage_of(components(Long()), "rl")
    await FailureRestarts().check(stage)
    with pytest.raises(ConfigError, match="failure_restarts has no failures to begin from"):
        await FailureRestarts().check(type(stage)(**{**vars(stage), "groups": FailureRestarts()}))
