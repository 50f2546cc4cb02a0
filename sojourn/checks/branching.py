"""Checks a branching rule on made-up plays: where it forks them, and whether that depends on the play alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sojourn.abilities import asks_critic, env_needs
from sojourn.branching.rule import BranchPoint, Fork, GroupBranching
from sojourn.checks import played
from sojourn.checks.promise import BrokenError, DoubtfulError, Promise, judge_all, require_config
from sojourn.checks.report import Report
from sojourn.checks.synthetic import content
from sojourn.types import Message, Role, Trajectory

ROOM = 7  # further plays that may begin
OTHER = Message(Role.ASSISTANT, "another action")  # of an expert


Asked = tuple[BranchPoint, ...]  # one play, or those that are over after a round


@dataclass(frozen=True)
class Case:
    rule: Any

    def forks(self, asked: Asked) -> Sequence[Fork]:
        rule, own = copy.deepcopy(self.rule), tuple(replace(point, rng=copy.deepcopy(point.rng)) for point in asked)
        return list(rule(own[0]) if len(own) == 1 else rule.after_round(1, own))

    def asked(self) -> Iterator[Asked]:
        """Yields what the rule is asked about: made-up plays and, where it looks at groups, groups of them."""
        for point in points(self.rule):
            yield (point,)
        if isinstance(self.rule, GroupBranching):
            yield from rounds(self.rule)


def points(rule: object) -> Iterator[BranchPoint]:
    """Yields made-up plays: before each of their turns and at their end, from the start and as branches, some with
    turns that went wrong, and some with states that they came to before. Where the rule asks for them, experts agree
    with some turns, and a critic has values before each."""
    rng = np.random.default_rng(0)
    for group in played.groups():
        for whole in group.trajectories:
            for began in {0, len(whole.turns) // 2}:
                for turn in range(began + (began > 0), len(whole.turns) + 1):
                    yield _point(rule, whole, turn, began, rng, over=False)
                yield _point(rule, whole, len(whole.turns), began, rng, over=True)


def rounds(rule: object) -> Iterator[Asked]:
    """Yields the plays of made-up groups at their ends, in some of the same states, with rewards that differ."""
    rng = np.random.default_rng(0)
    for group in played.groups():
        if len(group.trajectories) > 1:
            yield tuple(_point(rule, whole, len(whole.turns), 0, rng, over=True) for whole in group.trajectories)


def _point(
    rule: object, whole: Trajectory, count: int, began: int, rng: np.random.Generator, *, over: bool
) -> BranchPoint:
    wrong = {0: {}, 1: {"malformed": 1.0}, 2: {"error": 1.0}}
    turns = [
        replace(turn, info={**turn.info, **wrong[int(rng.integers(3))], "success": 0.0}, state=f"{rng.integers(2)}")
        for turn in whole.turns[:count]
    ]
    so_far = replace(whole, turns=tuple(turns))
    seeded = np.random.default_rng(int(rng.integers(1 << 30)))
    point = BranchPoint({whole.agent: so_far}, (whole.agent,) * count, over, began, int(began > 0), ROOM, seeded)
    if "expert" in env_needs(rule):
        said = (turn.message if turn.message and rng.random() < 0.5 else OTHER for turn in turns)
        point = replace(point, experts=tuple(said))
    return replace(point, values=tuple(rng.random(count).tolist())) if over and asks_critic(rule) else point


def check_branching(component: Any) -> Report:
    """Returns the verdicts on a branching rule."""
    return Report(type(component).__name__, judge_all(PROMISES, Case(component)))


def _declares(case: Case) -> str:
    return require_config(case.rule)


def _bounded(case: Case) -> str:
    leaves = getattr(case.rule, "leaves", None)
    if isinstance(leaves, bool) or not isinstance(leaves, int) or leaves < 2:
        raise BrokenError(
            f"leaves = {leaves!r}: expected the most plays that may come of one, a whole number from 2 on"
        )
    return f"at most {leaves}"


def _forks(case: Case) -> str:
    count, made = 0, list(case.asked())
    for asked in made:
        for fork in case.forks(asked):
            count += 1
            _require_own_turn(fork, asked)
    if not count:
        raise DoubtfulError(f"it forked none of {len(made)} made-up plays")
    return f"{count} times in {len(made)} moments of made-up plays"


def _require_own_turn(fork: Fork, asked: Asked) -> None:
    if not 0 <= fork.play < len(asked):
        raise BrokenError(f"it forks play {fork.play} of {len(asked)}: expected a number from 0 on, less than that")
    point = asked[fork.play]
    last = point.turn - point.over
    if not point.began <= fork.turn <= last:
        raise BrokenError(
            f"it forks before turn {fork.turn} of a play whose own turns are {point.began} to {last}: a play forks "
            "before its own turns only"
        )
    if fork.count < 1:
        raise BrokenError(f"it forks into {fork.count} plays: expected 1 or more, and no fork where there are none")


def _deterministic(case: Case) -> str:
    for asked in case.asked():
        if (first := case.forks(asked)) != (second := case.forks(asked)):
            raise BrokenError(
                f"the same play was forked into {first} and then {second}: draw from point.rng, and keep nothing; a "
                "resumed run would else play other branches"
            )
    return "the same play, the same forks"


def _leaves_inputs(case: Case) -> str:
    for asked in case.asked():
        before = content([point.trajectories for point in asked])
        case.forks(asked)
        if content([point.trajectories for point in asked]) != before:
            raise BrokenError("the trajectories are not what they were before the call: only return forks")
    return "trajectories"


SOUND = ("it forks plays before their own turns",)
PROMISES = (
    Promise("a config can name it", (), _declares),
    Promise("it says how large a tree may become", (), _bounded),
    Promise(SOUND[0], (), _forks),
    Promise("it is deterministic", SOUND, _deterministic),
    Promise("its inputs are not modified", SOUND, _leaves_inputs),
)
