"""An errand: devices in some state, the user's wishes, and the state that they should end in."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sojourn.tasks.splits import draw_for_seed
from sojourn_worlds.devices.table import Appliances, Property, State, Value, devices


@dataclass(frozen=True)
class Errand:
    devices: Appliances
    initial: State
    target: State
    wishes: tuple[str, ...]

    @property
    def needed(self) -> list[str]:
        """Returns what has to change, whether it was said or not."""
        return [path for path in self.initial if self.initial[path] != self.target[path]]

    def reached(self, state: State) -> list[str]:
        return [path for path in self.needed if state[path] == self.target[path]]

    def spoilt(self, state: State) -> list[str]:
        """Returns what was changed and should not have been."""
        return [path for path in state if state[path] != self.initial[path] == self.target[path]]

    def worth(self, state: State) -> float:
        return max(0.0, (len(self.reached(state)) - len(self.spoilt(state))) / len(self.needed))


@lru_cache(512)
def draw(seed: int, size: tuple[tuple[str, Any], ...]) -> Errand:
    """Returns the first of the seed's errands whose wishes can all be fulfilled at once. Each errand is in one split
    alone: of a few devices there are so few that some would be in both."""
    return draw_for_seed(seed, "devices", lambda rng: _first(rng, dict(size)), _content)


def _first(rng: random.Random, fields: Mapping[str, Any]) -> Errand:
    """Returns the first errand that can be fulfilled."""
    while True:
        if errand := _draw(rng, fields):
            return errand


def _content(errand: Errand) -> str:
    return f"{sorted(errand.initial.items())} {sorted(errand.target.items())}"


def _draw(rng: random.Random, fields: Mapping[str, Any]) -> Errand | None:
    everything = devices(fields["place"])
    there = everything.of(rng.sample(everything.names(), fields["devices"]))
    initial = there.draw(rng)
    target, wanted, wishes = dict(initial), {}, []
    for path in rng.sample(sorted(initial), fields["requests"]):
        wish = there.properties[path]
        value = rng.choice([v for v in (wish.draw(rng) for _ in range(50)) if v != initial[path]] or [initial[path]])
        there.achieve(target, path, value)
        wanted[path] = value
        wishes.append(_sentence(rng, wish, initial[path], value, fields["relative"]))
    holds = all(target[path] == value != initial[path] for path, value in wanted.items())
    return Errand(there, initial, target, tuple(wishes)) if holds else None


def _sentence(rng: random.Random, wish: Property, was: Value, value: Value, relative: float) -> str:
    by_how_much = rng.random() < relative
    if isinstance(value, int) and isinstance(was, int) and by_how_much:
        return f"{'Raise' if value > was else 'Lower'} the {wish.words} by {abs(value - was)}."
    if wish.options == ("off", "on"):
        return f"Turn {value} the {wish.words}."
    how = rng.choice(("Set the {} to {}.", "Please set the {} to {}.", "The {} should be {}."))
    return how.format(wish.words, value)
