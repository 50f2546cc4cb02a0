"""Mixes several worlds into one family: a single policy plays them all, and success is reported for each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from sojourn.abilities import Closes, Opens
from sojourn.config.fields import Kind
from sojourn.errors import ConfigError
from sojourn.protocols import Env, EnvFamily
from sojourn.tasks import Generated
from sojourn.types import Task


@dataclass
class _Opened:
    """Holds the stack that closes the open worlds together."""

    stack: AsyncExitStack | None = None


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """A family whose tasks come from several worlds in rounds; `shares` gives each world's tasks per round (default 1).

    Every task keeps the name of its own world, so success is reported by world. The training split lasts as long as the
    world with most tasks has new ones, and repeats the tasks of worlds with fewer. The test split has as many whole
    rounds as every world has tasks for. Each world keeps its own `capacity`.
    """

    worlds: Annotated[tuple[EnvFamily, ...], Kind("env")]
    shares: tuple[int, ...] = ()
    _opened: _Opened = field(default_factory=_Opened, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.worlds:
            raise ConfigError("mixed: worlds = []: give at least one, such as worlds = [{name = 'toy'}]")
        if self.shares and (len(self.shares) != len(self.worlds) or min(self.shares) < 1):
            raise ConfigError(
                f"mixed: shares = {list(self.shares)}: expected a whole number above 0 for each of the "
                f"{len(self.worlds)} worlds"
            )

    @cached_property
    def _by_name(self) -> dict[str, Any]:
        by_name: dict[str, Any] = {}
        for world in self.worlds:
            name = _first(world).env
            if name in by_name:
                raise ConfigError(f"mixed: two of its worlds are called '{name}', so their tasks cannot be told apart")
            by_name[name] = world
        return by_name

    @cached_property
    def _round(self) -> tuple[tuple[int, int], ...]:
        """Returns, for each task of a round, the index of its world and its number among that world's tasks in the
        round; the tasks of a world are spread evenly."""
        shares = self.shares or (1,) * len(self.worlds)
        places = [((k + 0.5) / share, which, k) for which, share in enumerate(shares) for k in range(share)]
        return tuple((which, k) for _, which, k in sorted(places))

    def tasks(self, split: str) -> Sequence[Task]:
        assert self._by_name
        listed = [world.tasks(split) for world in self.worlds]
        shares = self.shares or (1,) * len(self.worlds)
        if empty := [name for name, tasks in zip(self._by_name, listed, strict=True) if not len(tasks)]:
            raise ConfigError(f"mixed: the world '{empty[0]}' has no task of the split '{split}'")
        rounds = [len(tasks) // share for tasks, share in zip(listed, shares, strict=True)]
        whole = max(1, max(rounds) if split == "train" else min(rounds))

        def make(index: int) -> Task:
            number, place = divmod(index, len(self._round))
            which, k = self._round[place]
            return listed[which][(number * shares[which] + k) % len(listed[which])]

        return Generated(make, whole * len(self._round))

    def world_of(self, task: Task) -> Any:
        """Returns the world that a task belongs to."""
        if task.env not in self._by_name:
            raise ConfigError(
                f"mixed: task {task.id} is of '{task.env}', but the worlds are {', '.join(self._by_name)}"
            )
        return self._by_name[task.env]

    def make(self, task: Task) -> Env:
        return self.world_of(task).make(task)

    async def open(self) -> None:
        """Opens all worlds; where one fails, closes those that were opened before."""
        async with AsyncExitStack() as stack:
            for world in self.worlds:
                if isinstance(world, Closes):
                    stack.push_async_callback(world.close)
                if isinstance(world, Opens):
                    await world.open()
            self._opened.stack = stack.pop_all()

    async def close(self) -> None:
        stack, self._opened.stack = self._opened.stack, None
        if stack is not None:
            await stack.aclose()


def _first(world: Any) -> Task:
    for split in ("train", "test"):
        tasks = world.tasks(split)
        if len(tasks):
            return tasks[0]
    raise ConfigError(f"mixed: {type(world).__name__} has no tasks")
