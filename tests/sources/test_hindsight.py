"""Failed episodes as successes at what they reached: which are taken, what is trained, and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_world import Odd, Says, components, stage_of

from sojourn.backends.torch.models.tiny import build_tokenizer
from sojourn.checks.played import saved
from sojourn.errors import ConfigError, RewardError
from sojourn.record.episodes.store import EpisodeStore
from sojourn.sources.hindsight import Hindsight, HindsightGroups
from sojourn.sources.slots import Slots
from sojourn.types import (
    Episode,
    Group,
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Step,
    Task,
)

TURNS = 3


@dataclass(frozen=True, kw_only=True)
class Wanted(Odd):
    """Three turns, won by saying the word that the task asks for: "red", or in odd tasks whatever is said first.

    `deaf` worlds do not hear the first two words.
    """

    deaf: bool = False

    def make(self, task: Task) -> WantedPlay:  # type: ignore[override]
        return WantedPlay(task.data.get("word", "" if task.seed % 2 else "red"), self.deaf)

    def relabelled(self, episode: Episode) -> list[Task]:
        said = [turn.message.text for turn in episode.trajectories[0].turns if turn.message]
        return [replace(episode.task, data={"word": word}) for word in said if word != "no"]


@dataclass
class WantedPlay:
    word: str
    deaf: bool
    said: int = 0

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, "Go."),), system=(Message(Role.SYSTEM, f"Say {self.word}."),))

    async def step(self, agent: str, action: Message) -> Step:
        self.said += 1
        heard = action.text if self.said == TURNS or not self.deaf else ""
        won = heard == self.word or not self.word
        if won or self.said == TURNS:
            return Step(None, {agent: float(won)}, done=True, success=won)
        return Step(Observation((Message(Role.USER, f"Not {action.text}."),)), {agent: 0.0})

    async def close(self) -> None: ...


@dataclass
class Words(Says):
    """In the engine's place: says its words in turn in each play, as many as the prompt already holds."""

    words: tuple[str, ...] = ("no", "blue", "green")

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        self.text = self.words[as_text(prompt.tokens).count("Not ")]
        sample = await super().sample(prompt, params)
        return replace(sample, logprobs=np.full(len(sample.tokens), -len(prompt.tokens), dtype=np.float32))


def as_text(tokens: Any) -> str:
    return build_tokenizer().decode(np.asarray(tokens).tolist())


async def played(
    folder: Path, config: Hindsight, steps: int, world: Odd | None = None, words: tuple[str, ...] = Words.words
) -> tuple[HindsightGroups, list[list[Group]]]:
    """The source after some steps of two live groups each, and what it gave in them."""
    made = components(world or Wanted(), Words(words=words))
    made.episodes = EpisodeStore(folder, write=True)
    source, slots = config.bind(made, "rl", 9), Slots(width=2, size=2).bind(made, "rl", 9)
    given = []
    for step in range(steps):
        given.append(await source.take(step))
        groups = await slots.take(step)
        scores = await made.rewards(groups)
        source.observe(groups, scores)
        await asyncio.to_thread(made.episodes.append, "rl", step, groups, scores)
    await slots.close()
    return source, given


async def test_a_failed_episode_succeeds_at_what_it_reached(tmp_path: Path):
    """It said no, blue, green where red was wanted: so it becomes one that was asked for green."""
    source, given = await played(tmp_path, Hindsight(width=1), 2)
    assert given == [[], []]
    [group] = await source.take(2)
    [failed] = [g for g in source.context.episodes.groups("rl") if g.slot == 0]
    assert not any(t.success for t in failed.trajectories)
    assert group.origin == "hindsight"
    assert group.task == replace(failed.task, data={"word": "green"})
    [trajectory] = group.trajectories
    assert trajectory.success
    assert trajectory.reward == 1.0
    recorded = failed.trajectories[0]
    for number, (new, old) in enumerate(zip(trajectory.turns, recorded.turns, strict=True)):
        assert np.array_equal(new.sample.tokens, old.sample.tokens)
        assert np.array_equal(new.sample.logprobs, old.sample.logprobs)
        assert "Say green." in as_text(trajectory.prompt(number))
        assert as_text(trajectory.prompt(number)) == as_text(recorded.prompt(number)).replace("red", "green")
    assert source.metrics() == {"relabelled": 1.0, "relabel_refused": 0.0}
    assert source.metrics() == {"relabelled": 0.0, "relabel_refused": 0.0}


async def test_it_is_scored_and_not_counted_as_played(tmp_path: Path):
    source, _ = await played(tmp_path, Hindsight(width=1), 2)
    rewards = source.context.rewards
    rewards.clear()
    [group] = await source.take(2)
    [[score]] = await rewards([group])
    assert score.total == 1.0
    assert rewards.pop([group], below=9) == []


async def test_an_episode_ends_where_its_new_task_is_solved(tmp_path: Path):
    """Of blue and green, a random goal is blue now and then; then the last action is not played."""
    source, _ = await played(tmp_path, Hindsight(width=1, goal="random", max_age=0), 2)
    found = {group.task.data["word"]: group for step in range(2, 12) for group in await source.take(step)}
    assert {word: len(group.trajectories[0].turns) for word, group in found.items()} == {"blue": 2, "green": 3}


async def test_only_failures_of_groups_without_a_winner_that_reached_something_are_kept(tmp_path: Path):
    source, _ = await played(tmp_path, Hindsight(), 3, words=("blue", "no", "green"))
    assert source.entries["slot"].tolist() == [0, 0, 2, 2, 4, 4]  # the odd tasks are won
    assert source.entries["number"].tolist() == [0, 1] * 3
    few, _ = await played(tmp_path / "few", Hindsight(capacity=3), 3)
    assert few.entries["slot"].tolist() == [2, 4, 4]
    nothing, _ = await played(tmp_path / "nothing", Hindsight(), 3, words=("no", "no", "no"))
    assert len(nothing.entries) == 0


async def test_old_failures_are_left_alone(tmp_path: Path):
    source, _ = await played(tmp_path, Hindsight(max_age=3), 2)
    assert [len(await source.take(step)) for step in (2, 3, 4, 5)] == [2, 4, 2, 0]


async def test_what_does_not_succeed_when_it_is_played_again_is_refused(tmp_path: Path):
    """The world does not hear the first words, but says that they were reached."""
    source, _ = await played(tmp_path, Hindsight(width=2), 2, Wanted(deaf=True), ("blue", "green", "no"))
    assert await source.take(2) == []
    assert source.metrics() == {"relabelled": 0.0, "relabel_refused": 2.0}


async def test_what_cannot_be_said_or_scored_there_is_refused(tmp_path: Path):
    class Fails:
        async def __call__(self, group: Group):
            raise RewardError("no answer")

    source, _ = await played(tmp_path, Hindsight(width=1, max_age=0), 2)
    context: Any = source.context
    known, context.rewards.reward = context.rewards.reward, Fails()
    assert await source.take(2) == []
    context.rewards.reward = known
    [fits] = await source.take(3)
    context.runner.max_context = len(fits.trajectories[0].prompt(2)) + 1
    assert await source.take(4) == []


async def test_it_resumes_with_what_it_kept(tmp_path: Path):
    source, _ = await played(tmp_path, Hindsight(width=2, goal="random"), 3)
    other = Hindsight(width=2, goal="random").bind(source.context, "rl", 9)
    other.restore(saved(source.state()))
    for step in (4, 5, 6):
        ours, theirs = await source.take(step), await other.take(step)
        assert [(g.slot, g.task) for g in ours] == [(g.slot, g.task) for g in theirs]
        assert ours


async def test_it_needs_live_groups_and_a_world_that_relabels():
    stage = stage_of(components(Wanted()), "rl")
    await Hindsight().check(stage)
    with pytest.raises(ConfigError, match="hindsight has no episodes to relabel where the policy plays no groups"):
        await Hindsight().check(replace(stage, groups=Hindsight()))
    with pytest.raises(ConfigError, match=r"but Odd has no relabelled\(episode\)"):
        await Hindsight().check(replace(stage, env=Odd()))
