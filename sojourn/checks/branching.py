"""Checks a branching rule on made-up plays: where it forks them, and whether that depends on the play alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sojourn.branching.rule import BranchPoint, Fork
from sojourn.checks import played
from sojourn.checks.promise import BrokenError, DoubtfulError, Promise, judge_all, require_config
from sojourn.checks.report import Report
from sojourn.checks.synthetic import content
from sojourn.types import Trajectory

ROOM = 7  # further plays that may begin


@dataclass(frozen=True)
class Case:
    rule: Any

    def forks(self, point: BranchPoint) -> Sequence[Fork]:
        return list(copy.deepcopy(self.rule)(replace(point, rng=copy.deepcopy(point.rng))))


def points() -> Iterator[BranchPoint]:
    """Yields made-up plays: before each of their turns and at their end, from the start and as branches, some with
    turns that went wrong, and some with states that they came to before."""
    rng = np.random.default_rng(0)
    for group in played.groups():
        for whole in group.trajectories:
            for began in {0, len(whole.turns) // 2}:
                for turn in range(began + (began > 0), len(whole.turns) + 1):
                    yield _point(whole, turn, began, rng, over=False)
                yield _point(whole, len(whole.turns), began, rng, over=True)


def _point(whole: Trajectory, count: int, began: int, rng: np.random.Generator, *, over: bool) -> BranchPoint:
    wrong = {0: {}, 1: {"malformed": 1.0}, 2: {"error": 1.0}}
    turns = [
        replace(turn, info={**turn.info, **wrong[int(rng.integers(3))], "success": 0.0}, state=f"{rng.integers(2)}")
        for turn in whole.turns[:count]
    ]
    so_far = replace(whole, turns=tuple(turns))
    seeded = np.random.default_rng(int(rng.integers(1 << 30)))
    return BranchPoint({whole.agent: so_far}, (whole.agent,) * count, over, began, int(began > 0), ROOM, seeded)


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
    count, made = 0, list(points())
    for point in made:
        for fork in case.forks(point):
            count += 1
            _require_own_turn(fork, point)
    if not count:
        raise DoubtfulError(f"it forked none of {len(made)} made-up plays")
    return f"{count} times in {len(made)} moments of made-up plays"


def _require_own_turn(fork: Fork, point: BranchPoint) -> None:
    last = point.turn - point.over
    if not point.began <= fork.turn <= last:
        raise BrokenError(
            f"it forks before turn {fork.turn} of a play whose own turns are {point.began} to {last}: a play forks "
            "before its own turns only"
        )
    if fork.count < 1:
        raise BrokenError(f"it forks into {fork.count} plays: expected 1 or more, and no fork where there are none")


def _deterministic(case: Case) -> str:
    for point in points():
        if (first := case.forks(point)) != (second := case.forks(point)):
            raise BrokenError(
                f"the same play was forked into {first} and then {second}: draw from point.rng, and keep nothing; a "
                "resumed run would else play other branches"
            )
    return "the same play, the same forks"


def _leaves_inputs(case: Case) -> str:
    for point in points():
        before = content(point.trajectories)
        case.forks(point)
        if content(point.trajectories) != before:
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
