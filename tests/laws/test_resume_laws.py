"""Checkpoint and resume, in-flight episodes included: what was sampled before a checkpoint is not sampled again."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from made_world import Odd, components, sampled

from sojourn.agents.delegating import Delegating
from sojourn.agents.plain import Plain
from sojourn.agents.sub_agent import SubAgent
from sojourn.branching.expert_decisions import ExpertDecisions
from sojourn.branching.random_turns import RandomTurns
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.branching.uniform import Uniform
from sojourn.envs.toy import Toy
from sojourn.record import checkpoint
from sojourn.searchers.beam import Beam
from sojourn.searchers.best_of_n import BestOfN
from sojourn.searchers.mcts import MCTS
from sojourn.sources.searched import Searched
from sojourn.sources.slots import LiveSlots, Slots
from sojourn.types import Prompt, Sample, SamplingParams, Stop, Versions


@dataclass(frozen=True)
class InRounds:
    """Forks in two rounds: a play at random among all, before one of its turns at random."""

    leaves: int = 4

    def __call__(self, point: BranchPoint) -> list[Fork]:
        return []

    def after_round(self, number: int, plays: Sequence[BranchPoint]) -> list[Fork]:
        drawn = [int(play.rng.integers(play.began, play.turn)) for play in plays]
        first = min(range(len(plays)), key=lambda play: (drawn[play], play))
        return [Fork(drawn[first], 2, "first", play=first)] if number < 3 else []


TOY = Toy(rooms=2, side_rooms=1, choices=True, turns=6)
RULES = {
    "linear": None,
    "forks": Uniform(every=1, width=2, depth=2, leaves=3),
    "forks at the end": RandomTurns(count=2, leaves=3),
    "forks in rounds": InRounds(),
    "forks where an expert differs": ExpertDecisions(leaves=3),
}


ACTS = Plain(choices=True)
SEARCHERS = {
    "mcts": MCTS(base=ACTS, width=2, simulations=5, enough=2.0),
    "best_of_n": BestOfN(base=ACTS, n=3),
    "beam": Beam(base=ACTS, width=2, beams=2, depth=2, enough=2.0),
}


@dataclass
class Wanders:
    """In the engine's place: one of the possible actions, by the seed; stalls after `limit` of them."""

    version: int
    limit: int = 10**9
    asked: list[tuple[int, ...]] = field(default_factory=list)

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        if len(self.asked) >= self.limit:
            await asyncio.Event().wait()
        self.asked.append((params.seed, *prompt.tokens.tolist()))
        said = params.choices[np.random.default_rng(params.seed).integers(len(params.choices))]
        tokens = np.array(said, dtype=np.int64)
        allowed = tuple(None if n % 2 else tokens[: n + 1] for n in range(len(tokens)))
        logprobs = np.full(len(tokens), -1.5, dtype=np.float32)
        return Sample(tokens, logprobs, Versions(self.version, self.version), Stop.CHOICE, 0.7, allowed)

    async def score(self, prompt: Prompt) -> None:
        raise NotImplementedError


def source(sampler: Wanders, world=TOY, agent: Any = ACTS, kind: Any = Slots, **options: Any) -> LiveSlots:
    made = components(world, sampler)
    made.runner.agent, made.runner.max_context = agent, 4096
    return kind(width=2, size=3, max_lag=1, **options).bind(made, "rl", 2)


async def interrupted(folder, sampler: Wanders, **options):
    """What a checkpoint holds when the engine stalls in the middle of two steps' episodes."""
    slots = source(sampler, **options)
    waiting = asyncio.create_task(slots.take(0))
    for _ in range(2000):
        await asyncio.sleep(0)
    saved = checkpoint.save(folder, 1, lambda path: None, {"groups": slots.state()})
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return saved.state()["groups"]


STALLED = [*itertools.product(RULES, (0, 1, 30)), ("forks in rounds", 85)]  # the last: in a round


@pytest.mark.parametrize(("name", "limit"), STALLED)
async def test_samples_drawn_before_a_checkpoint_are_not_drawn_again(tmp_path, name, limit):
    rule, before, after, whole = RULES[name], Wanders(0, limit), Wanders(1), Wanders(2)
    state = await interrupted(tmp_path, before, branching=rule)
    assert len(before.asked) == limit
    labels = [label for record in state.values() for label in record["episodes"]]
    assert limit < 85 or {label.count(".") for label in labels} == {0, 1}
    resumed, uninterrupted = source(after, branching=rule), source(whole, branching=rule)
    resumed.restore(state)
    for step in range(2):
        for group, same in zip(await resumed.take(step), await uninterrupted.take(step), strict=True):
            assert group.slot == same.slot
            assert group.task == same.task
            assert [e.branch for e in group.episodes] == [e.branch for e in same.episodes]
            assert any(e.branch for e in group.episodes) == (rule is not None)
            assert [sampled(t) for t in group.trajectories] == [sampled(t) for t in same.trajectories]
            for turn in (turn for t in group.trajectories for turn in t.turns):
                assert turn.sample.temperature == 0.7
                assert turn.sample.stop is Stop.CHOICE
                assert turn.sample.allowed is not None
                for n, (allowed, token) in enumerate(zip(turn.sample.allowed, turn.sample.tokens, strict=True)):
                    assert allowed is None if n % 2 else allowed is not None and allowed[-1] == token
    for slots in (resumed, uninterrupted):
        await slots.close()
    assert not set(before.asked) & set(after.asked)
    assert sorted(before.asked + after.asked) == sorted(whole.asked)


@pytest.mark.parametrize("kept", [False, True], ids=["played", "kept"])
@pytest.mark.parametrize("agent", SEARCHERS.values(), ids=SEARCHERS)
@pytest.mark.parametrize("limit", [1, 40, 70])
async def test_a_search_goes_on_where_it_was_interrupted(tmp_path, limit, agent, kept):
    before, after, whole = Wanders(0, limit), Wanders(1), Wanders(2)
    options: dict[str, Any] = (
        {"kind": partial(Searched, agent=replace(agent, base=Plain()))} if kept else {"agent": agent}
    )
    state = await interrupted(tmp_path, before, **options)
    assert len(before.asked) == limit
    resumed, uninterrupted = source(after, **options), source(whole, **options)
    resumed.restore(state)
    for step in range(2):
        for group, same in zip(await resumed.take(step), await uninterrupted.take(step), strict=True):
            assert [sampled(t) for t in group.trajectories] == [sampled(t) for t in same.trajectories]
            assert [e.branch for e in group.episodes] == [e.branch for e in same.episodes]
            assert any(e.branch for e in group.episodes) == kept
            assert [turn.considered for t in group.trajectories for turn in t.turns] == [
                turn.considered for t in same.trajectories for turn in t.turns
            ]
    for slots in (resumed, uninterrupted):
        await slots.close()
    assert not set(before.asked) & set(after.asked)
    assert sorted(before.asked + after.asked) == sorted(whole.asked)


CALLS = Delegating(
    base=ACTS,
    sub_agents={
        "thinker": SubAgent(instruction="Think.", tasks=("on?", "back?"), results=("yes", "no"), base=ACTS),
        "walker": SubAgent(
            instruction="Walk.",
            world="acts",
            model="other",
            turns=3,
            tasks=("go on", "look"),
            results=("done",),
            base=ACTS,
        ),
    },
)


@pytest.mark.parametrize("limit", [1, 13, 14, 15, 16, 17, 18, 40])
async def test_an_agent_that_calls_others_goes_on_where_it_was_interrupted(tmp_path, limit):
    """The engine stalls in the middle of contexts of the main agent and of sub-agents."""
    before, after, whole = Wanders(0, limit), Wanders(1), Wanders(2)
    state = await interrupted(tmp_path, before, agent=CALLS)
    assert len(before.asked) == limit
    resumed, uninterrupted = source(after, agent=CALLS), source(whole, agent=CALLS)
    resumed.restore(state)
    agents = set()
    for step in range(2):
        for group, same in zip(await resumed.take(step), await uninterrupted.take(step), strict=True):
            played, others = ([t for e in g.episodes for t in e.trajectories] for g in (group, same))
            assert [(t.agent, t.model, sampled(t)) for t in played] == [(t.agent, t.model, sampled(t)) for t in others]
            agents |= {t.agent for t in played}
    for slots in (resumed, uninterrupted):
        await slots.close()
    assert agents == {"agent", "thinker", "walker"}
    assert not set(before.asked) & set(after.asked)
    assert sorted(before.asked + after.asked) == sorted(whole.asked)


async def test_resumed_samples_keep_the_versions_that_they_were_drawn_with(tmp_path):
    before, after = Wanders(0, 30), Wanders(1)
    resumed = source(after)
    resumed.restore(await interrupted(tmp_path, before))
    groups = [*await resumed.take(0), *await resumed.take(1)]
    await resumed.close()
    versions = [turn.sample.versions for g in groups for t in g.trajectories for turn in t.turns]
    assert versions.count(Versions(0, 0)) == 30
    assert set(versions) == {Versions(0, 0), Versions(1, 1)}


async def test_a_world_that_answers_differently_is_sampled_afresh_from_there(tmp_path):
    before, after = Wanders(0, 30), Wanders(1)
    state = await interrupted(tmp_path, before)
    other = Toy(rooms=2, side_rooms=1, choices=True, turns=6, decoys=0)  # other tasks, were they not saved
    resumed = source(after, world=other)
    for record in state.values():
        record["tasks"] = []
    resumed.restore(state)
    groups = await resumed.take(0)
    await resumed.close()
    assert {turn.sample.versions for g in groups for t in g.trajectories for turn in t.turns} == {Versions(1, 1)}


async def test_a_slot_keeps_the_tasks_it_was_given_redrawn_ones_included(tmp_path):
    """Whatever the curriculum would draw by now."""
    slots = Slots(width=2, size=2, max_lag=0, zero_signal="redraw", max_redraws=3, exhausted="keep")
    world = Odd(paying=False)
    first = slots.bind(components(world), "rl", 1)
    for slot in (0, 1):
        first._records[slot].tasks.append(world.tasks("train")[40 + slot])
    second = slots.bind(components(world), "rl", 1)
    second.restore(first.state())
    groups = await second.take(0)
    await second.close()
    assert set(world.plays) >= {40, 41}
    assert not set(world.plays) & {0, 1}
    assert [g.task.seed for g in groups] == [75, 76]  # the third redraw is three quarters of the tasks further on
    assert not second.state()
