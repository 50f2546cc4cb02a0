"""Plays told with thoughts: what each thought tells of other plays, what is trained, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from given_plays import Given
from made import chatml
from made_world import components, stage_of
from search_worlds import TASK, Digits, Draws, Family

from sojourn.agents.plain import Plain
from sojourn.branching.uniform import Uniform
from sojourn.credit.constant import Constant
from sojourn.errors import ConfigError
from sojourn.losses.nll import NLL
from sojourn.losses.ppo import PPO
from sojourn.sources.reasoned import Reasoned
from sojourn.sources.segments import SampleReplay
from sojourn.sources.slots import Slots
from sojourn.types import Message, Role, Sample, Stop, Versions

THINKING = chatml(thinking=True)


def said(text: str) -> Sample:
    tokens = np.array(THINKING.encode_reply(Message(Role.ASSISTANT, text, "hm")))
    return Sample(tokens, np.full(len(tokens), -1.0, np.float32), Versions(0, 0), Stop.END)


def bound(family: Family, max_tokens: int) -> Any:
    parts = components(family, Draws())
    parts = replace(parts, renderer=THINKING)
    parts.runner.renderer = THINKING
    parts.runner.max_context = 4096
    parts.runner.config = replace(parts.runner.config, max_error_rate=1.0)
    parts.recipe = replace(parts.recipe, sampling=replace(parts.recipe.sampling, max_tokens=max_tokens))
    return parts


async def thoughts(*plays: str, max_tokens: int = 500, family: Family | None = None, seed: int = 0, **config: Any):
    """Returns, for each play that is told, its thoughts and actions, with the groups, their scores and the metrics."""
    parts = bound(family or Family(kind=Digits), max_tokens)
    parts.runner.seed = seed
    samples = {f"p/{number}": [said(word) for word in play.split()] for number, play in enumerate(plays)}
    group = await parts.runner.play_group(
        TASK, 3, len(plays), parts.params, "p", sampler_for=lambda env, label: SampleReplay(samples[label])
    )
    source = Reasoned(base=Given(group), **config).bind(parts, "rl", 1)
    groups = await source.take(0)
    told = [[(t.message.thought, t.message.text) for t in played.turns] for g in groups for played in g.trajectories]
    return told, groups, await parts.rewards(groups), dict(source.metrics())


async def test_a_thought_tells_what_each_action_led_to():
    told, [group], [[score]], metrics = await thoughts("1 2 0", "2 1 0")
    [[(first, one), (second, two), (third, zero)]] = told
    assert (one, two, zero) == ("1", "2", "0")
    assert sorted(first.splitlines()) == [
        "If 1 -> said 1; then 2 -> said 12; then 0 -> This succeeds.",
        "If 2 -> said 2; then 1 -> said 21; then 0 -> This fails.",
        "So: 1",
    ]
    assert first.endswith("\nSo: 1")
    assert second == "If 2 -> said 12; then 0 -> This succeeds.\nSo: 2"
    assert third == "If 0 -> This succeeds.\nSo: 0"
    assert (group.origin, group.task, group.slot) == ("reasoned", TASK, 3)
    assert (score.total, group.trajectories[0].success) == (1.0, True)
    assert metrics == {"reasoned": 1.0, "reasoned_refused": 0.0, "reasoned_options": 4 / 3}


async def test_what_is_trained_was_not_sampled_and_stands_in_the_context_of_the_next():
    _, [group], _, _ = await thoughts("1 2 0", "2 1 0")
    [played] = group.trajectories
    for number, turn in enumerate(played.turns):
        assert turn.sample.versions == Versions(-1, -1)
        assert not turn.sample.logprobs.any()
        assert turn.parent == number - 1
    shown = THINKING.codec.decode(played.prompt(1))
    assert f"<think>\n{played.turns[0].message.thought}\n</think>\n\n1<|im_end|>" in shown
    assert "hm" not in shown  # what the policy thought is not told


async def test_a_play_is_compared_with_those_that_did_the_same_until_then():
    told, *_ = await thoughts("1 2 0", "1 0 0", "1 2 1")
    [[(first, _), (second, _), (third, _)]] = told
    assert first == "If 1 -> said 1; then 2 -> said 12; then 0 -> This succeeds.\nSo: 1"
    assert set(second.splitlines()) == {
        "If 2 -> said 12; then 0 -> This succeeds.",
        "If 0 -> said 10; then 0 -> This fails.",
        "So: 2",
    }
    assert set(third.splitlines()) == {"If 0 -> This succeeds.", "If 1 -> This fails.", "So: 0"}


async def test_depth_bounds_what_is_told_of_a_play_and_shown_what_of_an_answer():
    told, *_ = await thoughts("1 2 0", "2 1 0", depth=1, shown=6, succeeds="Won.", fails="Lost.")
    [[(first, _), _, (third, _)]] = told
    assert set(first.splitlines()) == {"If 1 -> said 1", "If 2 -> said 2", "So: 1"}
    assert third == "If 0 -> Won.\nSo: 0"
    [[(cut, _), *_]], *_ = await thoughts("1 2 0", depth=1, shown=3)
    assert cut == "If 1 -> sai\nSo: 1"


async def test_actions_that_were_tried_twice_are_told_once_and_no_more_than_others():
    plays = ("1 2 0", "2 1 0", "2 2 2", "3 0 0", "4 0 0", "5 0 0")
    told, *_ = await thoughts(*plays, others=9)
    lines = told[0][0][0].splitlines()
    assert sorted(line.split()[1] for line in lines[:-1]) == ["1", "2", "3", "4", "5"]
    fewer, *_ = await thoughts(*plays, others=2)
    assert len(fewer[0][0][0].splitlines()) == 4
    alone, *_ = await thoughts(*plays, others=0)
    assert alone[0][0][0].startswith("If 1 -> said 1")
    assert len(alone[0][0][0].splitlines()) == 2


async def test_the_action_of_the_play_may_come_first_or_last():
    told = [(await thoughts("1 2 0", "2 1 0", seed=seed))[0][0][0][0] for seed in range(12)]
    assert {thought.splitlines()[0].split()[1] for thought in told} == {"1", "2"}


class Sentences(Digits):
    """A world that shows whole sentences."""

    def _shown(self):
        shown = super()._shown()
        return replace(shown, messages=(replace(shown.messages[0], text=f"{shown.messages[0].text}. Go on."),))


async def test_no_full_stop_stands_before_what_comes_then():
    [[(first, _), *_]], *_ = await thoughts("1 2 0", family=Family(kind=Sentences))
    assert first == "If 1 -> said 1. Go on; then 2 -> said 12. Go on; then 0 -> This succeeds.\nSo: 1"


async def test_a_thought_without_another_action_may_be_empty():
    told, *_ = await thoughts("1 2 0", "1 0 0", everywhere=False)
    [[(first, one), (second, _), (third, _)]] = told
    assert (first, one, third) == ("", "1", "")
    assert second


async def test_a_thought_without_room_tells_fewer_actions_or_none():
    plays = ("1 2 0", "2 1 0", "3 1 0")
    whole, *_ = await thoughts(*plays)
    assert len(whole[0][0][0].splitlines()) == 4
    room = len(THINKING.encode_reply(Message(Role.ASSISTANT, "1", "\n".join(whole[0][0][0].splitlines()[1:]))))
    fewer, *_ = await thoughts(*plays, max_tokens=room)
    assert 2 <= len(fewer[0][0][0].splitlines()) < 4
    none, *_ = await thoughts(*plays, max_tokens=12)
    assert [thought for thought, _ in none[0]] == ["", "", ""]


async def test_no_play_that_failed_is_told_and_a_group_without_any_is_left_out():
    told, groups, _, metrics = await thoughts("1 1 1", "2 1 0")
    assert (told, groups, metrics["reasoned"], metrics["reasoned_refused"]) == ([], [], 0.0, 0.0)


class Endings(Digits):
    """A world that shows the end of a thought."""

    def _shown(self):
        shown = super()._shown()
        return replace(shown, messages=(replace(shown.messages[0], text="</think> it"),))


async def test_what_would_end_a_thought_is_not_told():
    [told], *_ = await thoughts("1 2 0", family=Family(kind=Endings))
    assert [thought for thought, _ in told] == ["", "", "If 0 -> This succeeds.\nSo: 0"]


class Counting(Digits):
    """A world whose rewards depend on how many plays there were before."""

    async def step(self, agent, action):
        step = await super().step(agent, action)
        return replace(step, rewards={agent: math.sqrt(self.family.steps)})


async def test_a_play_that_takes_another_course_is_left_out_and_counted():
    told, groups, _, metrics = await thoughts("1 2 0", "2 1 0", family=Family(kind=Counting))
    assert (told, groups) == ([], [])
    assert (metrics["reasoned"], metrics["reasoned_refused"]) == (0.0, 1.0)


async def test_it_tells_the_same_thoughts_again():
    plays = ("1 2 0", "2 1 0", "3 1 0")
    one, *_ = await thoughts(*plays)
    assert one == (await thoughts(*plays))[0]


async def test_plays_of_a_tree_are_told_one_by_one():
    source = Reasoned(base=Slots(width=1, size=1, branching=Uniform(every=1, depth=1, leaves=3)))
    assert source.base.forks
    assert not source.forks
    parts = bound(Family(secret="11"), 200)
    parts.runner.sampler = parts.sampler = Draws(tuple(f"hm\n</think>\n\n{digit}" for digit in "12"))
    bound_source = source.bind(parts, "rl", 6)
    groups = [g for step in range(6) for g in await bound_source.take(step)]
    assert groups
    assert all(episode.branch is None for group in groups for episode in group.episodes)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"losses": [PPO()]}, "PPO needs the sampler's log-probabilities, which a thought that is told does not have"),
        ({"agent": Plain(choices=True)}, "set agent.choices = false"),
        ({"renderer": chatml()}, "set renderer.thinking = true"),
    ],
)
async def test_what_cannot_be_told_is_refused_before_the_run(changed, told):
    stage = replace(stage_of(bound(Family(), 200), "rl"), estimator=Constant(), losses=[NLL()], renderer=THINKING)
    await Reasoned().check(stage)
    with pytest.raises(ConfigError, match=told):
        await Reasoned().check(replace(stage, **changed))
