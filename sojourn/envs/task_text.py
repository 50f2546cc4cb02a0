"""Writes tasks as text and reads them back: by the world itself, or as the numbers in their data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sojourn.abilities import Bounds, HasWorlds, MakesTasks, ReadsTasks
from sojourn.curricula.limits import Limits, narrowed
from sojourn.errors import ActionError
from sojourn.protocols import EnvFamily
from sojourn.types import Task

LONGEST = 20_000  # characters of a text


@dataclass(frozen=True)
class NumbersAsText:
    """Writes a task of a world as the numbers of its data that may be changed, a line for each, such as "rooms 3".
    `limits` names those that may be, within narrower bounds; without it, all that the world allows may be."""

    world: MakesTasks
    limits: Limits = field(default_factory=dict[str, tuple[float, float]])

    def bounds(self, like: Task) -> Mapping[str, Bounds]:
        return narrowed(self.world.bounds(like), self.limits)

    def task_format(self, like: Task) -> str:
        ranges = (f"{named(key)} {_range(bounds)}" for key, bounds in self.bounds(like).items())
        return f"Write a line for each of: {', '.join(ranges)}. A line is a name and its number, and nothing else."

    def write_task(self, task: Task) -> str:
        return "\n".join(line(key, task.data[key]) for key in self.bounds(task))

    def read_task(self, like: Task, text: str, seed: int) -> Task | None:
        bounds = self.bounds(like)
        by_name = {named(key): key for key in bounds}
        found: dict[str, float] = {}
        for one in filter(None, map(str.strip, text.splitlines())):
            read = re.fullmatch(r"(.+?)\s*[:= ]\s*(-?\d+(?:\.\d+)?)", one.lower())
            key = by_name.get(" ".join(read[1].split())) if read else None
            if read is None or key is None or key in found:
                raise ActionError(f'"{one[:60]}" is no line of a task. {self.task_format(like)}')
            found[key] = _number(read[2], like.data[key], bounds[key], key)
        if missing := [named(key) for key in bounds if key not in found]:
            raise ActionError(f"There is no line of {', '.join(missing)}. {self.task_format(like)}")
        return self.world.make_task(like, {**like.data, **found}, seed)

    def choices(self, like: Task) -> Mapping[str, tuple[str, ...]]:
        """Returns, for each number that may be changed, the lines that it may be written as."""
        return {
            key: tuple(line(key, value) for value in _values(bounds, like.data[key]))
            for key, bounds in self.bounds(like).items()
        }


def reader_of(family: EnvFamily, like: Task, limits: Limits) -> ReadsTasks | None:
    """Returns what reads texts as tasks like one of a family: the world of the task, where it can; else as numbers
    within `limits`, where it makes tasks of them; None where neither is possible."""
    world = family.world_of(like) if isinstance(family, HasWorlds) else family
    if isinstance(world, ReadsTasks) and not limits:
        return world
    reader = NumbersAsText(family, limits) if isinstance(family, MakesTasks) else None
    return reader if reader is not None and reader.bounds(like) else None


def line(key: str, value: float) -> str:
    return f"{named(key)} {value:g}"


def named(key: str) -> str:
    """Returns the name of a number in words."""
    return key.replace("_", " ")


def _range(bounds: Bounds) -> str:
    return f"from {bounds.low:g} to {bounds.high:g}"


def _number(text: str, like: object, bounds: Bounds, key: str) -> float:
    value = float(text)
    whole = isinstance(like, int)
    if not bounds.low <= value <= bounds.high or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise ActionError(f"{named(key)} {text[:20]}: expected {kind} {_range(bounds)}.")
    return int(value) if whole else value


def _values(bounds: Bounds, like: object) -> list[float]:
    count = round((bounds.high - bounds.low) / bounds.step + 1e-9)
    values = [round(bounds.low + number * bounds.step, 6) for number in range(count + 1)]
    kept = [value for value in values if value <= bounds.high]
    return [int(value) for value in kept] if isinstance(like, int) else kept
