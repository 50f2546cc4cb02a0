"""Bounds of the numbers in tasks' data, narrower than those of their world."""

from __future__ import annotations

from collections.abc import Mapping

from sojourn.abilities import Bounds
from sojourn.errors import ConfigError

Limits = Mapping[str, tuple[float, float]]  # the least and the greatest value of numbers, by their names


def check_limits(component: str, limits: Limits, bounds: Mapping[str, Bounds]) -> None:
    """Raises `ConfigError` for limits of a component that name other numbers than a world lets be changed, or that are
    outside of their bounds."""
    for key, (low, high) in limits.items():
        if key not in bounds:
            raise ConfigError(
                f"{component}: limits name '{key}', but the numbers that the world lets be changed are "
                f"{', '.join(bounds) or 'none'}"
            )
        if not low <= high or high < bounds[key].low or low > bounds[key].high:
            raise ConfigError(
                f"{component}: limits of '{key}' are from {low:g} to {high:g}: expected bounds within "
                f"{bounds[key].low:g} to {bounds[key].high:g}, the lower one first"
            )


def narrowed(bounds: Mapping[str, Bounds], limits: Limits) -> dict[str, Bounds]:
    """Returns the bounds of the numbers that may be changed: those that `limits` names, within both; all, where it
    names none."""
    if not limits:
        return dict(bounds)
    return {
        key: Bounds(max(low, bounds[key].low), min(high, bounds[key].high), bounds[key].step)
        for key, (low, high) in limits.items()
        if key in bounds
    }
