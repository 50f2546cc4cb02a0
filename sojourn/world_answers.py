"""Checks the observations and steps that an environment returns, and raises `WorldError` for what no run can use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, cast

from sojourn.config.registry import shown
from sojourn.errors import WorldError
from sojourn.finite import LARGEST, as_finite, is_success
from sojourn.types import Observation, Step


def checked_observation(value: Any, seats: Collection[str], world: str) -> Observation:
    """Returns the value if it is an observation for one of the seats, else raises `WorldError`."""
    if not isinstance(value, Observation):
        raise WorldError(f"the world '{world}' returns {shown(value)} as an observation: expected an Observation")
    if value.agent not in seats:
        raise WorldError(
            f"the world '{world}' returns an observation for seat '{value.agent}', but its seats are "
            f"{', '.join(seats)}: use one of their names"
        )
    return value


def checked_step(value: Any, seats: Collection[str], world: str) -> Step:
    """Returns the step with its numbers as Python floats. Raises `WorldError` where no run can use a part of it."""
    if not isinstance(value, Step):
        raise WorldError(f"the world '{world}' returns {shown(value)} for an action: expected a Step")
    if value.observation is not None and not value.done:
        checked_observation(value.observation, seats, world)
    for name in _table(value.rewards, "rewards", world):
        if name not in seats:
            raise WorldError(
                f"the world '{world}' gives the reward {shown(value.rewards[name])} to seat {shown(name)}, but its "
                f"seats are {', '.join(seats)}: use one of their names"
            )
    rewards, info = value.rewards, _table(value.info, "info", world)
    if not (_are_floats(rewards) and _are_floats(info)):
        rewards = {seat: _number(reward, f"gives seat '{seat}' the reward", world) for seat, reward in rewards.items()}
        info = {name: _number(number, f"gives the info '{name}' =", world) for name, number in info.items()}
    if not is_success(value.success):
        raise WorldError(
            f"the world '{world}' gives success = {shown(value.success)}: expected True, False, or None while it is "
            "not known"
        )
    return value if rewards is value.rewards else replace(value, rewards=rewards, info=info)


def _are_floats(numbers: Mapping[str, Any]) -> bool:
    """Returns whether all are finite Python floats already, as in most worlds."""
    return all(type(number) is float and abs(number) <= LARGEST for number in numbers.values())


def _table(value: Any, what: str, world: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise WorldError(f"the world '{world}' gives the {what} {shown(value)}: expected numbers by name")
    return cast("Mapping[str, Any]", value)


def _number(value: Any, what: str, world: str) -> float:
    number = as_finite(value)
    if number is None:
        raise WorldError(
            f"the world '{world}' {what} {shown(value)}: expected a finite number, of at most {LARGEST:.2g}"
        )
    return number
