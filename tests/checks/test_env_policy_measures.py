"""What is promised of the numbers that a world measures of a policy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from measured_world import Picks, observed
from test_check_env import World

from sojourn.abilities import MeasuredPolicy
from sojourn.checks.env import check_env
from sojourn.checks.report import Outcome

PROMISE = "it measures policies"


@dataclass(frozen=True, kw_only=True)
class Measuring(Picks):
    by: Callable[[MeasuredPolicy], Any]

    async def measure(self, policy: MeasuredPolicy) -> Any:
        return await self.by(policy)


async def test_a_world_that_measures_passes_and_others_need_not():
    verdict = (await check_env(Picks()))[PROMISE]
    assert verdict.outcome is Outcome.PASSED
    assert verdict.detail.startswith("left/green, left/green/down, ")
    assert (await check_env(Picks(measures="nothing")))[PROMISE].detail == "nothing of a random policy, twice the same"
    assert (await check_env(World()))[PROMISE].outcome is Outcome.NOT_OFFERED


count = itertools.count()


async def counts(policy: MeasuredPolicy) -> Any:
    return {"n": float(next(count))}


async def swallows(policy: MeasuredPolicy) -> Any:
    try:
        return {"p": (await policy("left", [observed("left")]))[0]}
    except Exception:
        return {"p": 0.0}


async def no_number(policy: MeasuredPolicy) -> Any:
    return {"p": "much"}


async def a_stranger(policy: MeasuredPolicy) -> Any:
    return {"p": (await policy("middle", [observed("left")]))[0]}


async def an_unlisted_action(policy: MeasuredPolicy) -> Any:
    return {"p": (await policy("left", [observed("left"), "yellow", observed("left", "yellow")]))[0]}


async def an_action_last(policy: MeasuredPolicy) -> Any:
    return {"p": (await policy("left", [observed("left"), "red"]))[0]}


@pytest.mark.parametrize(
    ("by", "told"),
    [
        (counts, "and of the same policy {'n': 1.0}"),
        (swallows, "of a policy that raised: expected the policy's error"),
        (no_number, "measure() gave {'p': 'much'}: expected finite numbers by name"),
        (a_stranger, "measure() asks for the seat 'middle': the seats are left, right"),
        (an_unlisted_action, "measure() has left say 'yellow', which its observation does not list"),
        (an_action_last, "expected observations that list actions, and an action between any two of them"),
    ],
)
async def test_what_no_run_can_use_is_told(by: Callable[[MeasuredPolicy], Any], told: str):
    verdict = (await check_env(Measuring(by=by)))[PROMISE]
    assert verdict.outcome is Outcome.FAILED
    assert told in verdict.detail
