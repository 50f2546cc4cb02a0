"""Checks a learning-rate schedule: its factors can be used at every update, and depend on nothing but its number."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from sojourn.checks.promise import BrokenError, DoubtfulError, Promise, judge_all, require_config
from sojourn.checks.report import Report

STAGES = (1, 2, 3, 10, 100, 1000)  # the updates of made-up stages


@dataclass(frozen=True)
class Case:
    schedule: Any

    def factors(self, updates: Sequence[int], steps: int) -> dict[int, float]:
        """Returns the factor of each of these updates of a stage, asked in this order of a fresh copy."""
        schedule = copy.deepcopy(self.schedule)
        return {update: schedule(update, steps) for update in updates}

    def stages(self) -> list[dict[int, float]]:
        return [self.factors(range(steps), steps) for steps in STAGES]


def check_schedule(component: Any) -> Report:
    """Returns the verdicts on a schedule, which is asked for the factors of stages of 1 to 1,000 updates."""
    return Report(type(component).__name__, judge_all(PROMISES, Case(component)))


def _declares(case: Case) -> str:
    return require_config(case.schedule)


def _sound(case: Case) -> str:
    for steps, factors in zip(STAGES, case.stages(), strict=True):
        for update, factor in factors.items():
            if isinstance(factor, bool) or not isinstance(factor, Real) or not math.isfinite(factor) or factor < 0:
                raise BrokenError(
                    f"update {update} of {steps} has the factor {factor!r:.80}: expected a finite number, at least 0"
                )
    return f"stages of {', '.join(map(str, STAGES))} updates"


def _trains(case: Case) -> str:
    idle = [steps for steps, factors in zip(STAGES, case.stages(), strict=True) if not any(factors.values())]
    if STAGES[-1] in idle:
        raise BrokenError(f"all {STAGES[-1]} updates of a stage have the factor 0: nothing would be trained")
    if idle:
        raise DoubtfulError(f"in a stage of {idle[-1]} updates every factor is 0: nothing would be trained")
    return "every stage has a factor above 0"


def _below_lr(case: Case) -> str:
    for steps, factors in zip(STAGES, case.stages(), strict=True):
        if high := [update for update, factor in factors.items() if factor > 1]:
            raise DoubtfulError(
                f"update {high[0]} of {steps} has the factor {factors[high[0]]:g}: the learning rate exceeds `lr` there"
            )
    return "no factor is above 1"


def _deterministic(case: Case) -> str:
    for steps, first, second in zip(STAGES, case.stages(), case.stages(), strict=True):
        _require_same(first, second, steps, "asked twice")
    return "the same update, the same factor"


def _any_order(case: Case) -> str:
    """Checks that a factor does not depend on the calls before it: a resumed run begins to ask in the middle."""
    for steps, factors in zip(STAGES, case.stages(), strict=True):
        _require_same(
            factors, case.factors(range(steps)[::-1], steps), steps, "asked from the last update to the first"
        )
    return "forwards and backwards"


def _require_same(expected: dict[int, float], found: dict[int, float], steps: int, when: str) -> None:
    for update, factor in expected.items():
        if found[update] != factor:
            raise BrokenError(
                f"{when}, update {update} of {steps} has the factor {found[update]:g} instead of {factor:g}: "
                "a resumed run would not be the same"
            )


SOUND = ("every update has a factor",)
PROMISES = (
    Promise("a config can name it", (), _declares),
    Promise(SOUND[0], (), _sound),
    Promise("it trains", SOUND, _trains),
    Promise("`lr` is the highest rate", SOUND, _below_lr),
    Promise("it is deterministic", SOUND, _deterministic),
    Promise("updates may be asked for in any order", (*SOUND, "it is deterministic"), _any_order),
)
