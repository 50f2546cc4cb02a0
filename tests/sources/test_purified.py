"""Episodes without the actions that failed and were mended: what is left out, and what the rest is trained with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from made_world import components, stage_of
from search_worlds import TASK, Digits, Draws, Family

from sojourn.errors import ConfigError
from sojourn.sources.purified import Purified, kept_turns
from sojourn.sources.slots import Slots
from sojourn.types import Ending, Message, Role, Sample, Stop, Trajectory, Turn, Versions


@dataclass
class Scoring(Draws):
    """Gives each token of a prompt a log-probability that depends on its place."""

    async def score(self, prompt):
        return -np.arange(1, len(prompt.tokens), dtype=np.float32) / 100


def turn(text, **info):
    sample = Sample(np.array([1, 2]), np.zeros(2, np.float32), Versions(0, 0), Stop.END)
    return Turn(-1, np.array([0]), sample, None if text is None else Message(Role.ASSISTANT, text), info=info)


@pytest.mark.parametrize(
    ("turns", "similarity", "kept"),
    [
        ([turn("a"), turn("b")], 0.0, [0, 1]),
        ([turn("a"), turn("b", malformed=1.0), turn("c")], 0.0, [0, 2]),
        ([turn("b", error=1.0), turn("b", malformed=1.0), turn("c"), turn("d")], 0.0, [2, 3]),
        ([turn("a"), turn("b", error=1.0)], 0.0, [0, 1]),  # nothing mended it
        ([turn("print(1", error=1.0), turn("print(1)")], 0.9, [1]),
        ([turn("open door", error=1.0), turn("print(1)")], 0.9, [0, 1]),
        ([turn(None, malformed=1.0), turn("print(1)")], 0.5, [0, 1]),
    ],
)
def test_which_turns_stay(turns, similarity, kept):
    assert kept_turns(Trajectory("agent", tuple(turns), Ending.DONE), similarity) == kept


async def purified(family, size=12, **config):
    sampler = Scoring(("9", "1", "2", "0", "1"))
    made = components(family, sampler)
    made.runner.config = replace(made.runner.config, max_error_rate=1.0)
    source = Purified(base=Slots(width=1, size=size), **config).bind(made, "rl", 1)
    [group] = await source.take(0)
    scores = await made.rewards([group])
    [played] = [one.group for one in made.rewards.pop([group], below=1)]
    await source.close()
    return group, scores[0], played, source


async def test_failures_that_were_mended_are_gone_and_the_rest_is_scored_anew():
    group, scores, played, source = await purified(Family(hint=0.25))
    changed = 0
    for own, before, score in zip(group.trajectories, played.trajectories, scores, strict=True):
        kept = [before.turns[number] for number in kept_turns(before)]
        assert [t.sample.tokens.tolist() for t in own.turns] == [t.sample.tokens.tolist() for t in kept]
        assert not any(t.info.get("malformed") for t in own.turns)
        assert own.reward == before.reward == score.total
        if own is before:
            continue
        changed += 1
        for number, one in enumerate(own.turns):
            length = len(own.prompt(number))
            assert one.sample.logprobs == pytest.approx(-np.arange(length, length + 2) / 100)
    assert changed > 3
    left_out = sum(len(t.turns) for t in played.trajectories) - sum(len(t.turns) for t in group.trajectories)
    assert source.metrics()["purified_turns"] == left_out
    assert source.metrics()["purified_turns"] == 0


async def test_where_the_rest_takes_another_course_the_episode_stays():
    class Counts(Digits):
        """Is told by refused actions, too: without them it pays otherwise."""

        async def step(self, agent, action):
            self.tries = getattr(self, "tries", 0) + 1
            step = await super().step(agent, action)
            return replace(step, rewards={agent: float(self.tries)})

    group, _, played, source = await purified(Family(kind=Counts))
    assert [t.turns for t in group.trajectories] == [t.turns for t in played.trajectories]
    assert source.metrics()["purify_refused"] > 3


async def test_a_failed_replay_leaves_the_episode_as_it_is():
    class Breaks(Family):
        made = 0

        def make(self, task):
            self.made += 1
            if self.made > 12:
                raise OSError("no more")
            return super().make(task)

    group, _, played, source = await purified(Breaks())
    assert [t.turns for t in group.trajectories] == [t.turns for t in played.trajectories]
    assert source.metrics()["purify_refused"] > 3


async def test_what_an_expert_said_keeps_its_log_probabilities_and_a_play_must_end_as_it_did():
    made = components(Family(), Scoring())
    source = Purified().bind(made, "rl", 1)
    episode = await made.runner.play_episode(TASK, made.params, "x")
    [trajectory] = episode.trajectories

    def of_expert(*numbers):
        turns = [replace(t, sample=replace(t.sample, versions=Versions(-1, -1))) for t in trajectory.turns]
        turns = [replace(turns[n], info={"malformed": float(place == 0)}) for place, n in enumerate(numbers)]
        return replace(episode, trajectories=(replace(trajectory, turns=tuple(turns)),))

    changed = await source._purified(0, of_expert(0, 0, 1, 2))
    assert [t.sample.logprobs.tolist() for t in changed.trajectories[0].turns] == [[-1.0, -1.0]] * 3
    assert await source._purified(0, of_expert(0, 1, 2)) is None  # two digits do not end the play
    await source.close()


async def test_worlds_of_several_seats_are_refused():
    @dataclass
    class Two(Family):
        seats: tuple[str, ...] = ("a", "b")

    made = components(Two())
    with pytest.raises(ConfigError, match="purified plays the episodes of one seat again"):
        await Purified().check(stage_of(made, "rl"))
