"""Checks a filter on synthetic groups: which episodes it chooses, and whether it chooses them again."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sojourn.checks import played
from sojourn.checks.promise import BrokenError, DoubtfulError, Promise, judge_all, require_config
from sojourn.checks.report import Report
from sojourn.checks.synthetic import content
from sojourn.types import Group


@dataclass(frozen=True)
class Case:
    filter: Any

    def chosen(self, group: Group) -> Sequence[int]:
        return copy.deepcopy(self.filter)(group, played.scores(group))

    def ids(self, group: Group) -> set[str]:
        return {group.episodes[number].id for number in self.chosen(group)}


def check_filter(component: Any) -> Report:
    """Returns the verdicts on a filter."""
    return Report(type(component).__name__, judge_all(PROMISES, Case(component)))


def _declares(case: Case) -> str:
    return require_config(case.filter)


def _chooses(case: Case) -> str:
    groups = played.groups()
    kept = [_require_numbers(case, group) for group in groups]
    if not any(kept):
        raise DoubtfulError(f"it left out all episodes of {len(groups)} groups: nothing would be trained")
    return f"{sum(kept)} of {sum(len(group.episodes) for group in groups)} episodes"


def _failures(case: Case) -> str:
    for group in played.broken_groups():
        _require_numbers(case, group)
    return "failed episodes, other seats, and a group that failed whole"


def _deterministic(case: Case) -> str:
    for group in played.groups():
        if (first := list(case.chosen(group))) != (second := list(case.chosen(group))):
            raise BrokenError(
                f"the same group gave {first} and then {second}: a resumed run would train other episodes"
            )
    return "the same group, the same episodes"


def _permutes(case: Case) -> str:
    rng = np.random.default_rng(0)
    for group in played.groups():
        expected = case.ids(group)
        for _ in range(4):
            order = rng.permutation(len(group.episodes)).tolist()
            if (found := case.ids(played.permuted(group, order))) != expected:
                raise BrokenError(
                    f"with its episodes in another order the group of slot {group.slot} keeps {sorted(found)}, not "
                    f"{sorted(expected)}: choose by what is in an episode, or by its id, not by its place"
                )
    return "4 orders"


def _leaves_inputs(case: Case) -> str:
    for group in played.groups():
        scores = played.scores(group)
        before = content(group), content(scores)
        copy.deepcopy(case.filter)(group, scores)
        if before != (content(group), content(scores)):
            raise BrokenError("the group or its scores are not what they were before the call: only return numbers")
    return "groups and scores"


def _require_numbers(case: Case, group: Group) -> int:
    """Requires different numbers of the group's episodes. Returns how many there are."""
    chosen, count = case.chosen(group), len(group.episodes)
    numbers = list(chosen)
    if wrong := [n for n in numbers if isinstance(n, bool | np.bool_) or not isinstance(n, int | np.integer)]:
        raise BrokenError(f"it chose {wrong[0]!r}: expected numbers of episodes, from 0 to {count - 1}")
    if outside := [n for n in numbers if not 0 <= n < count]:
        raise BrokenError(f"it chose episode {outside[0]} of {count}: expected numbers from 0 to {count - 1}")
    if len(set(numbers)) != len(numbers):
        raise BrokenError(f"it chose {numbers}: expected each episode once")
    return len(numbers)


SOUND = ("it chooses episodes of the group",)
PROMISES = (
    Promise("a config can name it", (), _declares),
    Promise(SOUND[0], (), _chooses),
    Promise("groups with failures are filtered", SOUND, _failures),
    Promise("it is deterministic", SOUND, _deterministic),
    Promise("permuting episodes chooses the same ones", (*SOUND, "it is deterministic"), _permutes),
    Promise("its inputs are not modified", SOUND, _leaves_inputs),
)
