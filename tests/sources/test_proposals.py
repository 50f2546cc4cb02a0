"""Tasks that a model proposes, and plays that solve them: what each is worth, and what is no proposer's fault."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from made_world import Says, components, sampled, stage_of

from sojourn.abilities import Bounds
from sojourn.backends.torch.models.tiny import build_tokenizer
from sojourn.envs.proposing import Proposing
from sojourn.envs.toy import Toy
from sojourn.errors import ConfigError, InfrastructureError, RewardError
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout
from sojourn.sources.proposals import ORIGIN, LiveProposals, Proposals
from sojourn.tasks import Generated
from sojourn.train.loop import taken_by
from sojourn.types import Episode, Group, Message, Observation, Prompt, Role, Sample, SamplingParams, Step, Task

SOLVES = 4
IMPOSSIBLE, NEVER_OPENS, OPENS_SOMETIMES = 6, 7, 8  # sizes


@dataclass(frozen=True, kw_only=True)
class Sized:
    """A task of size n, up to 4, is lost in its first n plays, and won in all others."""

    plays: Counter[str] = field(default_factory=Counter, init=False, compare=False)

    def tasks(self, split: str):
        first = 0 if split == "train" else 1_000
        return Generated(lambda index: Task("sized", {"size": 1}, first + index, split), 100)

    def make(self, task: Task) -> Any:
        number = self.plays[task.id]
        self.plays[task.id] += 1
        if task.data["size"] == NEVER_OPENS or (task.data["size"] == OPENS_SOMETIMES and number < 2):
            raise OSError("the world does not open")
        return SizedPlay(won=number >= task.data["size"] or (task.data["size"] == OPENS_SOMETIMES and number == 2))

    def bounds(self, like: Task) -> Mapping[str, Bounds]:
        return {"size": Bounds(0, 9)}

    def make_task(self, like: Task, data: Mapping[str, Any], seed: int) -> Task | None:
        return None if data["size"] == IMPOSSIBLE else Task("sized", dict(data), seed, "train")


@dataclass
class SizedPlay:
    won: bool

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, "Solve it."),))

    async def step(self, agent: str, action: Message) -> Step:
        return Step(None, {agent: float(self.won)}, done=True, success=self.won)

    async def close(self) -> None: ...


@dataclass
class Writes(Says):
    """In the engine's place: writes its texts in turn where a task is to be proposed, and solves with a word."""

    texts: Sequence[str] = ("size 1",)
    proposed: int = 0

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        if "Propose a task" in build_tokenizer().decode(prompt.tokens):
            self.text = self.texts[self.proposed % len(self.texts)]
            self.proposed += 1
        else:
            self.text = "yes"
        return await super().sample(prompt, params)


def bound(*texts: str, steps: int = 4, sampler: Any = None, world: Any = None, **config: Any) -> LiveProposals:
    parts = components(Proposing(world=world or Sized()), sampler or Writes(texts=texts))
    parts.runner.config = Rollout(retries=0, max_error_rate=1.0)
    keys = {"prompts": 1, "proposals": len(texts), "solves": SOLVES, **config}
    return Proposals(**keys).bind(parts, "rl", steps)


def taken(source: LiveProposals, step: int = 0) -> tuple[Group, list[Group], list[float]]:
    """Returns the proposals of a step of one prompt, the groups that solve them, and the rewards of the former."""

    async def take():
        groups = await source.take(step)
        return groups, await source.context.rewards(groups)

    groups, scores = asyncio.run(take())
    return groups[0], groups[1:], [float(score.total) for score in scores[0]]


def sizes(groups: Sequence[Group]) -> list[int]:
    return [group.task.data["size"] for group in groups]


def test_a_proposal_is_worth_one_minus_the_success_rate_if_it_was_ever_solved():
    """Absolute Zero's code: (1 - accuracy) if accuracy > 0 else 0; -0.5 for an invalid task; -1 for a bad format."""
    texts = [f"size {size}" for size in (0, 1, 3, 4, IMPOSSIBLE)]
    proposals, solved, rewards = taken(bound(*texts, "a big one"))
    assert rewards == [0, 0.25, 0.75, 0, -0.5, -1]
    assert sizes(solved) == [0, 1, 3, 4]
    assert [np.mean([t.success for t in group.trajectories]) for group in solved] == [1, 0.75, 0.25, 0]
    assert {group.origin for group in solved} == {"policy"}
    assert proposals.origin == ORIGIN


def test_search_self_plays_rewards():
    """Its code: 1 - success rate, whatever that is; or 4 s (1 - s)."""
    texts = [f"size {size}" for size in (0, 1, 4)]
    assert taken(bound(*texts, unsolved=1.0))[2] == [0, 0.25, 1]
    assert taken(bound(*texts, reward="middle"))[2] == [0, 0.75, 0]


def test_the_reward_of_self_play_swe_rl():
    """SSR, eq. 1: -1 where the consistency checks fail, -alpha if s is 0 or 1, else 1 - (1 + alpha) s; alpha is 0.8."""
    texts = [f"size {size}" for size in (0, 1, 2, 3, 4, IMPOSSIBLE)]
    rewards = taken(bound(*texts, reward="ssr", unsolved=-0.8, impossible=-1.0))[2]
    np.testing.assert_allclose(rewards, [-0.8, 1 - 1.8 * 0.75, 1 - 1.8 * 0.5, 1 - 1.8 * 0.25, -0.8, -1])


@dataclass(frozen=True, kw_only=True)
class Leaving(Sized):
    """A failed play of size n leaves a task of size n - 1, unless it is such a task itself."""

    def left_by(self, episode: Episode) -> Task | None:
        task = episode.task
        return None if "left" in task.data else replace(task, data={"size": task.data["size"] - 1, "left": True})


def test_what_failed_plays_leave_is_solved_too():
    """The higher-order bugs of SSR: they make no difference to what the first task is worth."""
    source = bound("size 1", "size 4", world=Leaving(), higher_order=1)
    proposals, solved, rewards = taken(source)
    assert [(group.task.data["size"], "left" in group.task.data) for group in solved] == [
        (1, False), (4, False), (0, True)
    ]  # fmt: skip
    assert rewards == [0.25, 0]
    assert len({group.slot for group in (proposals, *solved)}) == 4
    assert source.config.width == 4
    assert len(taken(bound("size 1", "size 4", world=Leaving(), higher_order=3))[1]) == 4, "equal ones are solved once"
    assert len(taken(bound("size 1", "size 4", world=Leaving()))[1]) == 2


def test_higher_order_is_refused_where_no_play_leaves_a_task():
    with pytest.raises(ConfigError, match="a failed play of the world 'toy' leaves no other task"):
        refused(Proposals(higher_order=1), Proposing(world=Toy()))


def test_a_failure_of_the_infrastructure_is_never_a_reward():
    """Where no play was completed, the proposal is not trained; else the rate is that of the plays that were."""
    source = bound(f"size {NEVER_OPENS}", f"size {OPENS_SOMETIMES}", "size 2")
    proposals, _, rewards = taken(source)
    assert [episode.error is None for episode in proposals.episodes] == [False, True, True]
    assert "no play of the task that was proposed was completed: OSError" in proposals.episodes[0].error
    assert rewards == [0.5, 0.5]
    assert source.context.runner.errors == SOLVES + 2 + 1, "the plays that failed, and the proposal"


def test_a_reward_that_fails_is_never_a_proposers_reward():
    source = bound("size 1", "size 2")

    class Fails:
        async def __call__(self, group):
            if group.task.data["size"] == 2:
                raise RewardError("the judge is away")
            return await own(group)

    own, source.context.rewards.reward = source.context.rewards.reward, Fails()
    proposals, _, rewards = taken(source)
    assert rewards == [0.25]
    assert "the judge is away" in proposals.episodes[1].error


def test_a_step_of_failures_alone_stops_the_run():
    with pytest.raises(InfrastructureError, match="all 5 episodes of step 0 failed"):
        taken(bound(f"size {NEVER_OPENS}"))


def test_equal_tasks_are_solved_once():
    proposals, solved, rewards = taken(bound("size 1", "size 3", "size 1"))
    assert len(proposals.episodes) == 3
    assert sizes(solved) == [1, 3]
    assert rewards == [0.25, 0.75, 0.25]
    assert taken(bound("size 1", "size 3", "size 1", "no", "no", repeated=0.4))[2] == pytest.approx(
        [0.15, 0.75, 0.15, -1, -1]
    )


def test_all_that_was_played_is_counted_and_proposals_have_no_reward_of_the_run():
    source = bound("size 1", "nothing")
    groups = asyncio.run(source.take(0))
    played = source.context.rewards.pop(groups, below=3)
    assert [(one.group.slot, one.group.origin) for one in played] == [(0, ORIGIN), (1, "policy")]
    assert [score.total for score in played[0].scores] == [0.25, -1]
    assert [score.parts for score in played[0].scores] == [{"success": 1.0, "solved": 0.75}, {"success": 0.0}]


def test_each_group_has_a_slot_of_its_own_of_those_of_its_step():
    source = bound("size 1", "no", "size 2", prompts=2, sampler=Writes(texts=("size 1", "no", "size 2")), proposals=3)
    assert source.config.width == 8

    async def steps():
        return [[group.slot for group in await source.take(step)] for step in range(2)]

    assert asyncio.run(steps()) == [[0, 1, 3, 4, 5, 7], [8, 9, 11, 12, 13, 15]]


def test_proposers_are_shown_what_was_used_before():
    source = bound("size 1", "size 2", "no", keep=2, examples=2)
    first = source._drawn(0).data
    assert first["examples"] == ["size 1"], "the task of the curriculum"
    for step in range(2):
        groups = asyncio.run(source.take(step))
        source.observe(groups, [])
        assert source.shown == ("size 1", "size 2")
    assert sorted(source._drawn(2).data["examples"]) == ["size 1", "size 2"]
    assert bound("no", examples=0)._drawn(0).data["examples"] == []


def test_metrics_say_what_was_proposed():
    source = bound("size 1", "size 1", "size 4", f"size {IMPOSSIBLE}", "no")
    taken(source)
    assert source.metrics() == {
        "proposals": 5,
        "proposals_used": 0.6,
        "proposals_malformed": 0.2,
        "proposals_distinct": 0.4,
        "proposals_solved": 0.5,
        "proposals_learnable": pytest.approx(2 / 3),
        "proposals_reward": pytest.approx((0.25 + 0.25 + 0 - 0.5 - 1) / 5),
        "proposed_size": 2,
    }


def test_a_frozen_solver_tells_what_a_proposal_is_worth():
    source = bound("size 1")
    source.context.runner.trained = ("maker",)
    source.context.runner.model_of = lambda label, seat, seats: "maker" if seat == "proposer" else "policy"
    proposals, [solved], rewards = taken(source)
    assert rewards == [0.25]
    assert (len(proposals.trajectories), len(solved.trajectories)) == (1, 0)


def test_learners_take_their_own_groups():
    source = bound("size 1", "size 2")
    source.context.runner.trained = ("policy", "maker")
    source.context.runner.model_of = lambda label, seat, seats: "maker" if seat == "proposer" else "policy"

    async def take():
        groups = await source.take(0)
        scores = await source.context.rewards(groups)
        return [[group.slot for group in taken_by(model, groups, scores)[0]] for model in ("maker", "policy")]

    assert asyncio.run(take()) == [[0], [1, 2]]


# -- lag, and resuming


@dataclass
class Seeded(Writes):
    """Writes by the seed that it is asked with, whatever was asked before. Where `left` is set, it solves that often,
    then waits for ever."""

    left: int | None = None
    waits: asyncio.Event = field(default_factory=asyncio.Event)

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        if "Propose a task" not in build_tokenizer().decode(prompt.tokens) and self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.waits.set()
                await asyncio.Event().wait()
        self.proposed = params.seed
        return await super().sample(prompt, params)


TEXTS = tuple(f"size {size}" for size in range(5))


def contents(groups: Sequence[Group]) -> list[Any]:
    return [
        (group.slot, group.task.id, group.origin, [sampled(trajectory) for trajectory in episode.trajectories])
        for group in groups
        for episode in group.episodes
    ]


def test_groups_begin_at_most_max_lag_steps_early():
    source = bound(*TEXTS[:2], sampler=Seeded(texts=TEXTS), max_lag=1)

    async def started() -> list[int]:
        found = []
        for step in range(4):
            await source.take(step)
            found.append(source._started)
        await source.close()
        return found

    assert asyncio.run(started()) == [1, 2, 3, 3]


def test_a_run_that_is_resumed_while_tasks_are_solved_proposes_and_plays_the_same():
    async def whole():
        source = bound(*TEXTS[:3], sampler=Seeded(texts=TEXTS), max_lag=1)
        steps = []
        for step in range(4):
            steps.append(await source.take(step))
            source.observe(steps[-1], [])
        return [contents(groups) for groups in steps]

    async def interrupted():
        sampler = Seeded(texts=TEXTS)
        source = bound(*TEXTS[:3], sampler=sampler, max_lag=1)
        steps = [await source.take(0)]
        source.observe(steps[0], [])
        await asyncio.gather(*source._running.values())
        before, sampler.left = len(sampler.asked), 2  # of what is proposed for step 2, two plays are begun
        steps.append(await source.take(1))
        source.observe(steps[1], [])
        await sampler.waits.wait()
        state = copy.deepcopy(source.state())
        await source.close()
        again = Seeded(texts=TEXTS)
        resumed = bound(*TEXTS[:3], sampler=again, max_lag=1)
        resumed.restore(state)
        for step in range(2, 4):
            steps.append(await resumed.take(step))
            resumed.observe(steps[step], [])
        sampled = {params.seed for params in sampler.asked[before:]}
        assert len(sampled) == 3 + 2
        assert not sampled & {params.seed for params in again.asked}, "what was sampled is not sampled again"
        return [contents(groups) for groups in steps]

    assert asyncio.run(interrupted()) == asyncio.run(whole())


# -- refusals before the run


def refused(config: Proposals, world: Any, **changes: Any) -> None:
    stage = replace(stage_of(components(world), "rl"), groups=config, **changes)
    asyncio.run(config.check(stage))


def test_what_cannot_work_is_refused_before_the_run():
    refused(Proposals(), Proposing(world=Toy()), limits=Limits(turns=1))
    with pytest.raises(ConfigError, match="needs a world in which tasks are proposed"):
        refused(Proposals(), Toy())
    with pytest.raises(ConfigError, match=r"in 5 turns, one for each number, but rollout\.limits\.turns = 4"):
        refused(Proposals(), Proposing(world=Toy(), choices=True), limits=Limits(turns=4))
    with pytest.raises(ConfigError, match=r"curriculum\.split is 'test'"):
        refused(Proposals(), Proposing(world=Toy()), split="test")
    with pytest.raises(ConfigError, match="needs the logprobs"):
        refused(Proposals(), Proposing(world=Toy()), params=SamplingParams(8, temperature=0))

    @dataclass(frozen=True, kw_only=True)
    class Two(Toy):
        seats = ("first", "second")

    with pytest.raises(ConfigError, match="has the seats first, second"):
        refused(Proposals(), Proposing(world=Two()))
