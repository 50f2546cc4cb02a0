"""Plays that fork: what their branches share, how they begin, and that nothing depends on how fast which of them is."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, replace
from typing import Any

import pytest
from walks import PARAMS, TASK, ForgetfulWalk, ForkableWalk, Walk, Walks, lambda_rule, play, played, runner, ways

from sojourn.agents.plain import Plain
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.branching.uniform import Uniform
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.types import Message, Observation, Step


def test_a_tree_has_a_leaf_for_each_branch_and_shares_the_turns_before_it():
    family = Walks()
    group = play(family, Uniform(every=2, width=2, depth=2, leaves=8), size=1)
    root, *branches = group.episodes
    assert [e.branch and e.branch.turns for e in group.episodes] == [None, (2,), (4,), (4,)]
    assert [e.branch.of for e in branches] == [root.id, branches[0].id, root.id]  # depth first
    assert {e.branch.reason for e in branches} == {"every 2 turns"}
    by_id = {e.id: e.trajectories[0].turns for e in group.episodes}
    for episode in branches:
        (count,), turns, others = episode.branch.turns, episode.trajectories[0].turns, by_id[episode.branch.of]
        assert all(one.sample is other.sample for one, other in zip(turns[:count], others[:count], strict=True))
        assert all(one.sample is not other.sample for one, other in zip(turns[count:], others[count:], strict=False))
    assert len({tuple(way) for way in ways(group)}) > 1
    assert family.open == 0
    assert all(e.error is None and e.close_error is None for e in group.episodes)


def test_a_play_that_never_forks_is_the_play_without_a_rule():
    flat = asyncio.run(runner(Walks()).play_group(TASK, 5, 3, PARAMS, "rl/5/0"))
    assert played(play(Walks(), lambda_rule(lambda point: []), size=3)) == played(flat)


def test_a_branch_by_replay_is_the_branch_by_fork():
    rule = Uniform(every=1, width=3, depth=2, leaves=5)
    forked, replayed = Walks(), Walks(Walk)
    assert played(play(forked, rule)) == played(play(replayed, rule))
    assert replayed.steps > forked.steps


def test_a_tree_does_not_depend_on_which_play_is_faster():
    rule = Uniform(every=2, width=2, depth=2)
    assert played(play(Walks(slow=0.002), rule)) == played(play(Walks(), rule))


def test_no_more_plays_come_of_a_root_than_the_rule_says():
    group = play(Walks(), Uniform(every=1, width=4, depth=5, leaves=6), size=3)
    roots = [e.id.removeprefix("rl/5/0/").split("-")[0].split(".")[0] for e in group.episodes]
    assert [roots.count(root) for root in "012"] == [6, 6, 6]


def test_what_a_rule_is_told():
    told: list[BranchPoint] = []

    def forks(point: BranchPoint) -> list[Fork]:
        told.append(point)
        return [Fork(3, 1, "now")] if point.turn == 3 and point.began == 0 else []

    group = play(Walks(), lambda_rule(forks, leaves=4), size=1)
    assert [e.branch and e.branch.turns for e in group.episodes] == [None, (3,)]
    root = [p for p in told if not p.began]
    lengths = [len(e.trajectories[0].turns) for e in group.episodes]
    assert [(p.turn, len(p.trajectories["agent"].turns), p.over) for p in root] == [
        *((n, n, False) for n in range(lengths[0])),
        (lengths[0], lengths[0], True),
    ]
    assert [(p.forks, p.room) for p in root] == [(0, 3)] * 4 + [(1, 1)] * (lengths[0] - 3)  # one for each side is left
    branch = [p for p in told if p.began]
    assert {(p.began, p.forks, p.room) for p in branch} == {(3, 1, 1)}
    assert [p.turn for p in branch] == [*range(4, lengths[1]), lengths[1]]
    assert [turn.message for turn in branch[-1].turns()] == [t.message for t in group.episodes[1].trajectories[0].turns]
    assert len({copy.deepcopy(p.rng).random() for p in told}) == len(told)


def test_a_play_may_fork_before_its_earlier_turns():
    def forks(point: BranchPoint) -> list[Fork]:
        return [Fork(1, 2, "in hindsight"), Fork(4, 1, "in hindsight")] if point.over and not point.began else []

    family = Walks()
    group = play(family, lambda_rule(forks, leaves=4), size=1)
    root, *branches = group.episodes
    assert [e.branch.turns for e in branches] == [(1,), (1,), (4,)]
    assert ways(play(family, lambda_rule(forks, leaves=3), size=1)) == ways(group)[:3]
    for episode in branches:
        (count,) = episode.branch.turns
        turns = episode.trajectories[0].turns
        shared = [one.sample is other.sample for one, other in zip(turns, root.trajectories[0].turns, strict=False)]
        assert shared == [n < count for n in range(len(shared))]
        assert episode.error is None
    assert family.open == 0


def test_a_play_does_not_fork_before_the_turns_of_another():
    def forks(point: BranchPoint) -> list[Fork]:
        return [Fork(0 if point.began else 2, 1, "")] if point.turn == (3 if point.began else 2) else []

    family = Walks()
    with pytest.raises(ExceptionGroup) as caught:
        play(family, lambda_rule(forks), size=1)
    assert family.open == 0
    assert caught.group_contains(ConfigError, match="forks before turn 0 of a play whose own turns are 2 to")


class Duel(ForkableWalk):
    """Two seats act in turn; the one that acted last is paid for both once more."""

    async def step(self, agent: str, action: Message) -> Step:
        step = await super().step(agent, action)
        if step.observation is None:
            return replace(step, rewards={"white": 1.0, "black": -1.0})
        other = "black" if agent == "white" else "white"
        return replace(step, observation=replace(step.observation, agent=other), rewards={"white": 0.5, "black": 0.25})

    def _shown(self) -> Observation:
        return replace(super()._shown(), agent="white")


@dataclass
class Duels(Walks):
    kind: type[Walk] = Duel
    seats: tuple[str, ...] = ("white", "black")


def test_every_seat_of_a_branch_shares_its_own_turns():
    """After three turns, of which white took two."""
    group = play(Duels(), lambda_rule(lambda p: [Fork(3, 1, "")] if p.turn == 3 and not p.over else [], 2), size=1)
    root, branch = group.episodes
    assert branch.branch is not None
    assert branch.branch.turns == (2, 1)
    for seat in (0, 1):
        one, other = root.trajectories[seat].turns, branch.trajectories[seat].turns
        shared = [a.sample is b.sample for a, b in zip(one, other, strict=False)]
        assert shared == [n < branch.branch.turns[seat] for n in range(len(shared))]
    assert [t.agent for t in branch.trajectories] == ["white", "black"]
    assert group.holders[2][:2] == (0, 0)
    assert group.holders[3][:1] == (1,)


def test_a_fork_that_fails_is_a_failure_of_that_branch_alone():
    group = play(Walks(breaks=True), Uniform(every=2, width=2, depth=1), size=1)
    assert [e.error for e in group.episodes] == [None, "InfrastructureError: no memory is left"]
    again = play(Walks(breaks=True), Uniform(every=2, width=2, depth=1), size=1, retries=1)
    assert [e.error for e in again.episodes] == [None, None]  # by a replay


def test_a_world_that_differs_when_it_is_replayed_fails_the_branch():
    group = play(Walks(ForgetfulWalk), Uniform(every=2, width=2, depth=1), size=1)
    assert group.episodes[0].error is None
    assert "not deterministic: replayed for a branch, it gives another observation" in (group.episodes[1].error or "")


@pytest.mark.parametrize("concurrency", [8, 1])  # with 1 the branches have not begun when they are dropped
def test_a_play_that_is_repeated_drops_the_branches_of_the_attempt_that_failed(concurrency):
    class BreaksOnce(ForkableWalk):
        async def step(self, agent: str, action: Message) -> Step:
            if len(self.way) == 4 and not self.family.shown and not hasattr(self, "copied"):
                self.family.shown += 1
                raise InfrastructureError("the server restarted")
            return await super().step(agent, action)

        async def fork(self) -> Walk:
            copied = await super().fork()
            copied.copied = True  # type: ignore[attr-defined]
            return copied

    family, ended = Walks(BreaksOnce), list[str]()
    rule = Uniform(every=2, width=2, depth=1)
    options = {"retries": 1, "concurrency": concurrency}
    found = play(family, rule, size=1, on_episode=lambda episode: ended.append(episode.id), **options)
    assert ways(found) == ways(play(Walks(), rule, size=1))
    assert sorted(ended) == sorted(e.id for e in found.episodes)
    assert family.open == 0


def test_an_agent_whose_seats_cannot_be_forked_is_refused():
    @dataclass(frozen=True)
    class Unforkable:
        def seat(self, context: Any) -> Any:
            seat = Plain().seat(context)
            return type("Bare", (), {name: getattr(seat, name) for name in ("act", "add_reward", "refuse", "finish")})()

    with pytest.raises(ExceptionGroup) as caught:
        play(Walks(), Uniform(), agent=Unforkable())
    assert caught.group_contains(ConfigError, match="has no fork")
