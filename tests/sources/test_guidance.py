"""Second attempts with guidance: who gets which, what they are shown, and what counts as played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
from made import chatml
from made_world import Odd, Says, components, stage_of

from sojourn.agents.plain import Plain
from sojourn.backends.torch.models.tiny import build_tokenizer
from sojourn.config.toml import Tables
from sojourn.credit.rloo import RLOO
from sojourn.errors import ActionError, ConfigError, RewardError
from sojourn.protocols import AgentContext
from sojourn.sources.guidance import Guidance, Guided, GuidedGroups
from sojourn.sources.slots import Slots
from sojourn.train.assemble import Components
from sojourn.train.resolve import resolve
from sojourn.types import Group, Message, Observation, Prompt, Role, SamplingParams, Step, Task


@dataclass(frozen=True, kw_only=True)
class Word(Odd):
    """Two turns, which are won by saying "yes" twice, as the expert does. The even tasks are always won."""

    def make(self, task: Task) -> WordPlay:  # type: ignore[override]
        return WordPlay(self.lost, task.seed % 2 == 0)


@dataclass
class WordPlay:
    lost: bool
    easy: bool
    said: int = 0
    right: bool = True

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, "Say it."),), system=(Message(Role.SYSTEM, "Play."),))

    async def step(self, agent: str, action: Message) -> Step:
        self.said, self.right = self.said + 1, self.right and action.text == "yes"
        if self.said == 1:
            return Step(Observation((Message(Role.USER, "Again."),)), {agent: 0.0})
        won = self.easy or self.right
        return Step(None, {agent: float(won)}, done=True, success=won)

    async def close(self) -> None: ...

    def expert(self) -> str:
        if self.lost:
            raise RuntimeError("the expert lost its way")
        return "yes"


@dataclass
class Obeys(Says):
    """In the engine's place: says no, but yes where its prompt says it, in all plays but that of the last number."""

    text: str = "no"
    prompts: Sequence[str] = ()

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Any:
        text = as_text(prompt.tokens)
        self.prompts = [*self.prompts, text]
        told = "yes" in text and params.seed % 3 > 0
        return await replace(self, text="yes" if told else "no").say(prompt, params)

    async def say(self, prompt: Prompt, params: SamplingParams) -> Any:
        return await Says.sample(self, prompt, params)


def as_text(tokens: Any) -> str:
    return build_tokenizer().decode(np.asarray(tokens).tolist())


async def played(
    config: Guidance, world: Odd | None = None
) -> tuple[list[Group], list[Group], GuidedGroups, Components]:
    """What the first step trains, and what it played."""
    made = components(world or Word(), Obeys())
    source = config.bind(made, "rl", 1)
    groups = await source.take(0)
    await made.rewards(groups)
    popped = made.rewards.pop(groups, below=config.width)
    await source.close()
    return groups, [one.group for one in popped], source, made


def guided_prompts(made: Components) -> list[str]:
    assert isinstance(made.sampler, Obeys)
    return [prompt for prompt in made.sampler.prompts if "An earlier attempt" in prompt]


async def test_a_failed_group_is_played_again_with_the_experts_plan():
    groups, plays, source, _ = await played(Guidance(base=Slots(width=2, size=6)))
    easy, hard = groups
    assert len(plays) == 2  # the second attempt is no play
    assert plays[0] is easy
    assert [t.success for t in plays[1].trajectories] == [False] * 6
    assert 0 < sum(t.success for t in hard.trajectories) < 6
    assert hard.task == plays[1].task
    assert {episode.id.rpartition("/")[0] for episode in hard.episodes} == {"rl/guided/1"}
    text = "An earlier attempt at this task failed. A way that works begins like this: yes; yes.\n\nSay it."
    assert all(text in as_text(t.turns[0].context) for t in hard.trajectories)
    assert all("earlier" not in as_text(t.turns[1].context) for t in hard.trajectories)
    won = sum(t.success for t in hard.trajectories)
    assert source.metrics() == {"guided": 1.0, "guided_success": won / 6}
    assert source.metrics() == {"guided": 0.0}


async def test_a_part_of_the_plan():
    *_, made = await played(Guidance(base=Slots(width=2, size=2), fraction=0.5))
    assert all("like this: yes.\n" in prompt for prompt in guided_prompts(made))
    assert guided_prompts(made)


async def test_what_failed_is_told_and_where_it_does_not_help_the_first_attempts_stay():
    groups, plays, source, made = await played(Guidance(base=Slots(width=2, size=2), kind="failure"))
    assert groups == plays
    assert all("it did not succeed: no; no.\n" in prompt for prompt in guided_prompts(made))
    assert guided_prompts(made)
    assert source.metrics() == {"guided": 1.0, "guided_success": 0.0}


async def test_without_a_plan_there_is_no_second_attempt():
    groups, plays, source, _ = await played(Guidance(base=Slots(width=2, size=2)), Word(lost=True))
    assert groups == plays
    assert source.metrics() == {"guided": 0.0}


async def test_second_attempts_that_cannot_be_scored_are_left_out():
    class Fails:
        async def __call__(self, group: Group):
            if "guided" in group.episodes[0].id:
                raise RewardError("no answer")
            return await made.recipe.reward(group)

    made = components(Word(), Obeys())
    made.rewards.reward = Fails()
    source = Guidance(base=Slots(width=2, size=4)).bind(made, "rl", 1)
    groups = await source.take(0)
    assert [episode.id.split("/")[1] for group in groups for episode in group.episodes] == ["0"] * 4 + ["1"] * 4


async def test_hidden_guidance_is_not_in_what_is_trained():
    """The samples are those of the guided plays, in the contexts of the first ones."""
    groups, plays, source, made = await played(Guidance(base=Slots(width=2, size=6), hidden=True))
    _, hard = groups
    assert guided_prompts(made)
    assert source.config.max_lag == 1  # a loss without a ratio is refused
    won = [trajectory.success for trajectory in hard.trajectories]
    assert 0 < sum(won) < 6
    assert {episode.id.rpartition("/")[0] for episode in hard.episodes} == {"rl/hidden/1"}
    for trajectory in hard.trajectories:
        first, second = trajectory.turns
        assert "earlier attempt" not in as_text(second.context)
        assert np.array_equal(first.context, plays[1].trajectories[0].turns[0].context)
        assert trajectory.success == all("yes" in as_text(turn.sample.tokens) for turn in (first, second))


def test_hidden_guidance_needs_a_loss_with_a_ratio():
    stage = {
        "name": "rl",
        "estimator": {"name": "rloo"},
        "losses": [{"name": "reinforce"}],
        "groups": {"name": "guidance"},
    }
    table = {"name": "t", "env": {"name": "toy"}, "stages": [stage]}
    assert resolve(Tables(table))
    stage["groups"] = {"name": "guidance", "hidden": True}
    with pytest.raises(ConfigError, match="Reinforce is valid only for samples of the current weights, but Guidance"):
        resolve(Tables(table))


class Forgets(Word):
    """Lets nobody win its odd tasks any more after the guided plays."""

    def __init__(self) -> None:
        self.hard_plays = iter(range(18))

    def make(self, task: Task) -> WordPlay:  # type: ignore[override]
        play = super().make(task)
        play.right = play.easy or next(self.hard_plays) < 12
        return play


async def test_hidden_guidance_that_ends_otherwise_without_it_is_not_trained():
    world = Forgets()
    groups, plays, source, _ = await played(
        Guidance(base=Slots(width=2, size=6), kind="text", text="Say yes.", hidden=True), world
    )
    assert groups == plays
    assert source.metrics()["guided_success"] > 0
    assert next(world.hard_plays, None) is None  # the guided plays were tried without the text


async def test_a_text_of_ones_own_is_guidance():
    groups, plays, _, made = await played(Guidance(base=Slots(width=2, size=6), kind="text", text="Always say yes."))
    assert any(trajectory.success for trajectory in groups[1].trajectories)
    assert not any(trajectory.success for trajectory in plays[1].trajectories)
    assert isinstance(made.sampler, Obeys)
    assert sum("Always say yes.\n\nSay it." in prompt for prompt in made.sampler.prompts) == 2 * 6


async def test_every_group_is_joined_by_guided_episodes_without_the_text():
    """A group has its own episodes, as they were played, and the samples of the guided ones in the same contexts."""
    config = Guidance(base=Slots(width=2, size=4), kind="text", text="Always say yes.", hidden=True, join=3)
    groups, plays, source, made = await played(config)
    assert [len(group.episodes) for group in groups] == [7, 7]  # the easy task is joined, too
    assert [len(group.episodes) for group in plays] == [4, 4]
    for group, play in zip(groups, plays, strict=True):
        assert group.episodes[:4] == play.episodes
        assert {e.id.rpartition("/")[0] for e in group.episodes[4:]} == {f"rl/hidden/{group.slot}"}
        first = play.trajectories[0].turns[0].context
        assert all(np.array_equal(t.turns[0].context, first) for t in group.trajectories)
    assert isinstance(made.sampler, Obeys)
    assert sum("Always say yes." in prompt for prompt in made.sampler.prompts) == 2 * 3 * 2  # both turns of each
    said = ["yes" in as_text(t.turns[0].sample.tokens) for t in groups[1].trajectories]
    assert not any(said[:4])
    assert any(said[4:])
    logprobs = [turn.sample.logprobs for t in groups[1].trajectories for turn in t.turns]
    assert all((found == -0.5).all() for found in logprobs)  # as the guided policy had sampled them
    won = sum(t.success for group in groups for t in group.trajectories[4:])
    assert source.metrics() == {"guided": 2.0, "guided_success": won / 6}


async def test_advantages_are_over_the_joint_group():
    config = Guidance(base=Slots(width=2, size=6), kind="text", text="Always say yes.", hidden=True, join=6)
    groups, _, _, made = await played(config)
    scores = await made.rewards(groups)
    credit = RLOO()(groups, scores, {})
    hard = [round(float(c.tokens[0][0]), 4) for c in credit[1]]
    assert [score.total for score in scores[1]] == [0.0] * 6 + [float(t.success) for t in groups[1].trajectories[6:]]
    won = int(sum(score.total for score in scores[1]))
    assert 0 < won < 6
    # each return minus the mean return of the eleven others
    assert set(hard[:6]) == {round(-won / 11, 4)}
    assert sorted(set(hard[6:])) == [round(-won / 11, 4), round(1 - (won - 1) / 11, 4)]


async def test_joined_guidance_stays_in_the_context_unless_it_is_hidden():
    config = Guidance(base=Slots(width=2, size=2), kind="text", text="Always say yes.", join=2)
    groups, *_ = await played(config)
    assert config.max_lag == 0
    for group in groups:
        told = ["Always say yes." in as_text(t.turns[0].context) for t in group.trajectories]
        assert told == [False, False, True, True]


async def test_guided_episodes_that_end_otherwise_without_the_text_do_not_join():
    world = Forgets()
    config = Guidance(base=Slots(width=2, size=6), kind="text", text="Say yes.", hidden=True, join=6)
    groups, _, source, _ = await played(config, world)
    lost = round(12 * (1 - source.metrics()["guided_success"]))  # of the hard task: those of the easy one are all won
    assert 0 < lost < 6
    assert [len(group.episodes) for group in groups] == [12, 6 + lost]


async def test_a_joint_group_that_cannot_be_scored_is_left_as_it_was():
    class Fails:
        async def __call__(self, group: Group):
            if len(group.episodes) > 2:
                raise RewardError("no answer")
            return await made.recipe.reward(group)

    made = components(Word(), Obeys())
    made.rewards.reward = Fails()
    source = Guidance(base=Slots(width=1, size=2), kind="text", text="Say yes.", join=2).bind(made, "rl", 1)
    groups = await source.take(0)
    assert [len(group.episodes) for group in groups] == [2]


def test_only_a_text_joins_groups_that_did_not_fail():
    with pytest.raises(ValueError, match="all groups are joined"):
        Guidance(kind="failure", join=2)


@pytest.mark.parametrize("keys", [{"kind": "text"}, {"text": "Say yes."}])
def test_a_text_and_its_kind_belong_together(keys: Any):
    with pytest.raises(ValueError, match="belong together"):
        Guidance(**keys)


async def test_a_plan_needs_an_expert():
    mute = stage_of(components(Odd(mute=True)), "rl")
    with pytest.raises(ConfigError, match=r"guidance by plan asks an expert, but the world 'odd' has no expert\(\)"):
        await Guidance().check(mute)
    await Guidance(kind="failure").check(mute)


@pytest.mark.parametrize("history", ["full", "page"])
async def test_after_a_refusal_the_guidance_is_in_the_context_once(history: Literal["full", "page"]):
    sampler = Obeys(text="no", prompts=[])
    context = AgentContext(
        name="a", renderer=chatml(), sampler=sampler, params=SamplingParams(8, seed=0), max_context=999
    )
    seat = Guided(Plain(history=history), "Say yes.").seat(context)
    world = Observation((Message(Role.USER, "Now."),))
    await seat.act(world)
    await seat.act(seat.refuse(ActionError("No such word."), world))
    assert sampler.prompts[-1].count("Say yes.") == sampler.prompts[-1].count("Now.") == 1
