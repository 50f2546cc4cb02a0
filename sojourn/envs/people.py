"""What worlds of people and tools share: their lists of tasks, the checking of fields, and plays that tell numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from sojourn.envs.tools import Interface, ToolsEnv
from sojourn.errors import ConfigError
from sojourn.tasks import Generated
from sojourn.types import Message, Step, Task

TEST = 10**9  # the first seed of the test split


def require_within(world: str, family: Any, limits: Mapping[str, tuple[float, float]]) -> None:
    """Refuses a field beyond its limits."""
    for name, (low, high) in limits.items():
        if not low <= (value := getattr(family, name)) <= high:
            raise ConfigError(f"{world}: {name} = {value}, but it must be from {low} to {high}")


def require_among(world: str, family: Any, options: Mapping[str, Sequence[str]]) -> None:
    """Refuses a field that is none of its options."""
    for name, known in options.items():
        if (value := getattr(family, name)) not in known:
            raise ConfigError(f'{world}: {name} = "{value}", but it must be one of {", ".join(known)}')


def seeded(world: str, family: Any, split: str, data: Callable[[int], Mapping[str, Any]]) -> Sequence[Task]:
    """The tasks of a split, `family.train` or `family.test` of them, each with the data of its seed."""
    if split not in ("train", "test"):
        raise ConfigError(f'{world}: there is no split "{split}", use "train" or "test"')
    first, size = (0, family.train) if split == "train" else (TEST, family.test)
    return Generated(lambda index: Task(world, dict(data(first + index)), first + index, split), size)


@cache
def interface_of(plain: type, name: str, form: Literal["both", "text", "native"]) -> Interface:
    return Interface.of(plain, name, form)


class TellingEnv(ToolsEnv):
    """A play of a plain object whose attribute `info`, a mapping, holds the numbers of the turn just taken."""

    async def step(self, agent: str, action: Message) -> Step:
        step = await super().step(agent, action)
        return replace(step, info={**step.info, **self.game.info})

    async def _fork(self) -> TellingEnv:
        twin = type(self)(self.interface, copy.deepcopy(self.game))
        twin.over = self.over
        return twin
