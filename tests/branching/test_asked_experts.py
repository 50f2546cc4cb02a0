"""A rule that needs an expert is told what the world's would have done in each turn, also where plays fork."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from walks import Dice, ForkableWalk, Walk, Walks, play

from sojourn.branching.expert_decisions import ExpertDecisions
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.errors import InfrastructureError


def expected(way: list[str]) -> str:
    return "left" if len(way) % 2 else "right"


class Replayed(Walk):
    def expert(self) -> str:
        return expected(self.way)


class Forked(ForkableWalk):
    async def expert(self) -> str:
        return expected(self.way)


class Leaving(Forked):
    """Has an expert for three turns, as a page may have none."""

    @property
    def expert(self) -> Any:  # type: ignore[override]
        if len(self.way) >= 3:
            raise AttributeError("expert")
        return super().expert


class Failing(Forked):
    async def expert(self) -> str:
        if len(self.way) == 4:
            raise InfrastructureError("the expert's server is down")
        return expected(self.way)


@dataclass(frozen=True)
class Told:
    """Forks before turn 2, later before turn 4, and keeps what it is told."""

    env_needs: frozenset[str] = frozenset({"expert"})
    leaves: ClassVar[int] = 4
    points: list[BranchPoint] = field(default_factory=list)

    def __call__(self, point: BranchPoint) -> list[Fork]:
        self.points.append(point)
        if point.over:
            return [Fork(4, 1, "in hindsight")] if point.began == 2 else []
        return [Fork(2, 1, "now")] if point.turn == 2 else []


def said(point: BranchPoint) -> list[str | None]:
    return [None if message is None else message.text for message in point.experts]


STEPS = Dice(("left", "right"))


@pytest.mark.parametrize("kind", [Replayed, Forked])
def test_experts_are_asked_before_each_turn_of_a_play_and_its_branches(kind):
    rule = Told()
    group = play(Walks(kind), rule, size=1, dice=STEPS)
    assert [e.branch and e.branch.turns for e in group.episodes] == [None, (2,), (4,)]
    assert all(e.error is None for e in group.episodes)
    for point in rule.points:
        assert said(point) == [("right", "left")[n % 2] for n in range(point.turn)]


def test_experts_are_not_asked_for_a_rule_that_does_not_need_them():
    rule = Told(env_needs=frozenset())
    play(Walks(Failing), rule, size=1, dice=STEPS)
    assert {point.experts for point in rule.points} == {()}


def test_a_turn_in_which_the_world_has_no_expert_has_none():
    rule = Told()
    play(Walks(Leaving), rule, size=1, dice=STEPS)
    assert {tuple(said(p)) for p in rule.points if p.over} == {("right", "left", "right", None, None, None)}


def test_an_expert_that_fails_fails_its_play():
    group = play(Walks(Failing), Told(), size=2, dice=STEPS)
    assert all("the expert's server is down" in (e.error or "") for e in group.episodes)
    assert all(len(e.trajectories[0].turns) == 4 for e in group.episodes)


def test_plays_fork_where_they_left_the_experts_way():
    group = play(Walks(Forked), ExpertDecisions(leaves=6, depth=5), size=4, dice=STEPS)
    by_id = {e.id: e for e in group.episodes}
    branches = [e for e in group.episodes if e.branch is not None]
    assert branches
    for episode in branches:
        left, own = by_id[episode.branch.of].trajectories[0], episode.branch.turns[0]
        began = by_id[episode.branch.of].branch.turns[0] if by_id[episode.branch.of].branch else 0
        actions = [turn.message.text for turn in left.turns]
        wrong = [n for n, text in enumerate(actions) if text != ("right", "left")[n % 2]]
        assert own == next(n for n in wrong if n >= began)
        assert not left.success
