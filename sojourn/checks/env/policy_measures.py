"""Checks what a world measures of a policy as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sojourn.abilities import MeasuredPolicy, MeasuresPolicy
from sojourn.checks.env.play import Case, short
from sojourn.checks.promise import BrokenError, NotOfferedError
from sojourn.errors import leaf
from sojourn.finite import finite_by_name
from sojourn.rollout.world import seats_of_world, worlds_of
from sojourn.types import Observation


class UntoldError(Exception):
    """The policy's probabilities are not known."""


async def measured(case: Case) -> str:
    """Has each world measure a policy that acts at random, twice, and one whose probabilities are not known."""
    worlds = [world for world in worlds_of(case.family) if isinstance(world, MeasuresPolicy)]
    if not worlds:
        raise NotOfferedError("no measure(): evaluations tell what is played, nothing of the policy as a whole")
    names: set[str] = set()
    for world in worlds:
        policy = _RandomPolicy(seats_of_world(world))
        numbers = await _measured(world, policy)
        if (again := await _measured(world, policy)) != numbers:
            raise BrokenError(f"measure() gave {short(numbers)}, and of the same policy {short(again)}")
        if policy.asked:
            await _require_error(world)
        names |= set(numbers)
    return f"{', '.join(sorted(names)) or 'nothing'} of a random policy, twice the same"


async def _measured(world: MeasuresPolicy, policy: MeasuredPolicy) -> dict[str, float]:
    try:
        measured: Any = await world.measure(policy)
    except ExceptionGroup as group:  # of a world that asks for many things at once
        raise leaf(group) from group
    numbers = finite_by_name(measured)
    if numbers is None:
        raise BrokenError(f"measure() gave {short(measured)}: expected finite numbers by name")
    return numbers


async def _require_error(world: MeasuresPolicy) -> None:
    async def untold(seat: str, seen: Sequence[Observation | str]) -> Sequence[float]:
        raise UntoldError

    try:
        found = await world.measure(untold)
    except Exception as error:
        if isinstance(leaf(error), UntoldError):
            return
        raise
    raise BrokenError(f"measure() gave {short(found)} of a policy that raised: expected the policy's error")


class _RandomPolicy:
    """Gives all listed actions the same probability, and requires that what it is asked makes sense."""

    def __init__(self, seats: tuple[str, ...]) -> None:
        self.seats = seats
        self.asked = 0

    async def __call__(self, seat: str, seen: Sequence[Observation | str]) -> Sequence[float]:
        self.asked += 1
        if seat not in self.seats:
            raise BrokenError(f"measure() asks for the seat {short(seat)}: the seats are {', '.join(self.seats)}")
        shown, said = list(seen[::2]), list(seen[1::2])
        if len(shown) != len(said) + 1 or not all(isinstance(one, Observation) and one.choices for one in shown):
            raise BrokenError(
                f"measure() asks what follows {short(seen)}: expected observations that list actions, and an action "
                "between any two of them"
            )
        observations = [one for one in shown if isinstance(one, Observation)]
        for observation, action in zip(observations[:-1], said, strict=True):
            if observation.agent != seat or action not in observation.choices:
                raise BrokenError(f"measure() has {seat} say {short(action)}, which its observation does not list")
        return [1 / len(observations[-1].choices)] * len(observations[-1].choices)
