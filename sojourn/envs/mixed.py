"""Mixes several worlds into one family: a single policy plays them all, and success is reported for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

from sojourn.abilities import Bounds, Closes, HasWorlds, MakesTasks, Opens
from sojourn.config.fields import Kind
from sojourn.errors import ConfigError
from sojourn.protocols import Env, EnvFamily
from sojourn.tasks import Generated
from sojourn.types import Task


@dataclass
class _Opened:
    """Holds a stack for each call of `open`, which closes the worlds that it opened; none where it failed."""

    stacks: list[AsyncExitStack] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """A family whose tasks come from several worlds in rounds; `shares` gives each world's tasks per round (default 1).

    Every task keeps the name of its own world, so success is reported by world. The training split lasts as long as the
    world with most tasks has new ones, and repeats the tasks of worlds with fewer. The test split has as many whole
    rounds as every world has tasks for. Each world keeps its own `capacity`.

    With `levels` the worlds are levels of difficulty, in their order: every task gets the tag of its own, "level-0",
    "level-1" ..., and several may be the same world with other settings.
    """

    worlds: Annotated[tuple[EnvFamily, ...], Kind("env")]
    shares: tuple[int, ...] = ()
    levels: bool = False
    _opened: _Opened = field(default_factory=_Opened, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.worlds:
            raise ConfigError("mixed: worlds = []: give at least one, such as worlds = [{name = 'toy'}]")
        if any(isinstance(world, HasWorlds) for world in self.worlds):
            raise ConfigError("mixed: one of its worlds is mixed itself: list the worlds of that among its own")
        if self.shares and (len(self.shares) != len(self.worlds) or min(self.shares) < 1):
            raise ConfigError(
                f"mixed: shares = {list(self.shares)}: expected a whole number above 0 for each of the "
                f"{len(self.worlds)} worlds"
            )

    @cached_property
    def _by_name(self) -> dict[str, Any]:
        by_name: dict[str, Any] = {}
        ids: set[str] = set()
        for level, world in enumerate(self.worlds):
            first = _first(world)
            name = f"level-{level}" if self.levels else first.env
            if name in by_name:
                raise ConfigError(
                    f"mixed: two of its worlds are called '{name}', so their tasks cannot be told apart: give them "
                    "other tasks, and set levels = true"
                )
            if first.id in ids:
                raise ConfigError(
                    f"mixed: {name} has a task of another level, so what is learned of one would count for both: give "
                    "each level a setting that is in the data of its tasks"
                )
            by_name[name] = world
            ids.add(first.id)
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
            task = listed[which][(number * shares[which] + k) % len(listed[which])]
            return replace(task, tags=(*task.tags, f"level-{which}")) if self.levels else task

        return Generated(make, whole * len(self._round))

    def world_of(self, task: Task) -> Any:
        """Returns the world that a task belongs to."""
        names = task.tags[::-1] if self.levels else (task.env,)
        name = next((name for name in names if name in self._by_name), None)
        if name is None:
            kind, known = "levels" if self.levels else "worlds", ", ".join(self._by_name)
            raise ConfigError(f"mixed: task {task.id} is of '{', '.join(names)}', but the {kind} are {known}")
        return self._by_name[name]

    def bounds(self, like: Task) -> Mapping[str, Bounds]:
        world = self.world_of(like)
        return world.bounds(like) if isinstance(world, MakesTasks) else {}

    def make_task(self, like: Task, data: Mapping[str, Any], seed: int) -> Task | None:
        """Returns the task that the world of `like` makes; with `levels` it is one of the same level."""
        world = self.world_of(like)
        task = world.make_task(like, data, seed) if isinstance(world, MakesTasks) else None
        if task is None or not self.levels:
            return task
        level = next(tag for tag in like.tags[::-1] if tag in self._by_name)
        return replace(task, tags=(*task.tags, level))

    def make(self, task: Task) -> Env:
        return self.world_of(task).make(task)

    async def open(self) -> None:
        """Opens all worlds; where one fails, closes those that were opened before. May be called again, where each call
        needs its `close`."""
        self._opened.stacks.append(opened := AsyncExitStack())
        async with AsyncExitStack() as stack:
            for world in self.worlds:
                if isinstance(world, Closes):
                    stack.push_async_callback(world.close)
                if isinstance(world, Opens):
                    await world.open()
            opened.push_async_callback(stack.pop_all().aclose)

    async def close(self) -> None:
        if self._opened.stacks:
            await self._opened.stacks.pop().aclose()


def _first(world: Any) -> Task:
    for split in ("train", "test"):
        tasks = world.tasks(split)
        if len(tasks):
            return tasks[0]
    raise ConfigError(f"mixed: {type(world).__name__} has no tasks")
