"""Checks what an environment returns where it enters an episode: raises `WorldError` for what no run can use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, cast

from sojourn.config.registry import shown
from sojourn.errors import WorldError
from sojourn.finite import LARGEST, as_finite, is_success
from sojourn.types import Observation, Step


def checked_observation(value: Any, seats: Collection[str], world: str) -> Observation:
    """Returns the observation. Raises `WorldError` where it is none, or is for a seat that does not exist."""
    if not isinstance(value, Observation):
        raise WorldError(f"the world '{world}' shows {shown(value)}: expected an Observation")
    if value.agent not in seats:
        raise WorldError(
            f"the world '{world}' asks for seat '{value.agent}', but only {', '.join(seats)} sit here: name the seats "
            "alike"
        )
    return value


def checked_step(value: Any, seats: Collection[str], world: str) -> Step:
    """Returns the step with its numbers as plain floats. Raises `WorldError` for a part that no run can use."""
    if not isinstance(value, Step):
        raise WorldError(f"the world '{world}' answers an action with {shown(value)}: expected a Step")
    if value.observation is not None and not value.done:
        checked_observation(value.observation, seats, world)
    for name in _table(value.rewards, "rewards", world):
        if name not in seats:
            raise WorldError(
                f"the world '{world}' pays {shown(value.rewards[name])} to seat {shown(name)}, but only "
                f"{', '.join(seats)} sit here: name the seats alike"
            )
    rewards, info = value.rewards, _table(value.info, "info", world)
    if not (_plain(rewards) and _plain(info)):
        rewards = {seat: _number(paid, f"pays seat '{seat}'", world) for seat, paid in rewards.items()}
        info = {name: _number(told, f"tells '{name}' =", world) for name, told in info.items()}
    if not is_success(value.success):
        raise WorldError(
            f"the world '{world}' says success = {shown(value.success)}: expected True, False, or None while it is "
            "not known"
        )
    return value if rewards is value.rewards else replace(value, rewards=rewards, info=info)


def _plain(numbers: Mapping[str, Any]) -> bool:
    """Returns whether all are finite Python floats already, as most are."""
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
