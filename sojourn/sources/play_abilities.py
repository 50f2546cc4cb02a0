"""Finds out whether the environments of a family have an optional ability that a recipe needs, and begins some."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from sojourn.abilities import PLAY_ABILITIES, play_abilities
from sojourn.config.lookup import nearest
from sojourn.errors import ConfigError, InfrastructureError, RenderError, SojournError
from sojourn.event_loop import contained
from sojourn.protocols import Env, EnvFamily
from sojourn.rollout.limits import Limits, call_env
from sojourn.rollout.world import worlds_of
from sojourn.timeline import Timeline
from sojourn.types import Observation, Task

MAX_TASKS = 256  # of a split, among which the kinds of tasks are looked for
MAX_NAMED = 5  # kinds of tasks that a message names


class Probed(NamedTuple):
    """The abilities of the environment of the first task of one kind, which `tags` tell from others."""

    tags: tuple[str, ...]
    env: str
    abilities: frozenset[str]


@dataclass
class PlayAbilities:
    """The abilities of a family's environments. For each kind of tasks one environment is made and closed, when an
    ability is first asked for, and none is made for further questions."""

    family: EnvFamily
    limits: Limits
    split: str = "train"
    _worlds: list[list[Probed]] = field(default_factory=list[list[Probed]])

    async def lacking(self, name: str) -> str:
        """Returns which environments lack one of `PLAY_ABILITIES`, such as "the world 'web' for its tasks 'draw'"; the
        empty text where all have it.

        Raises `InfrastructureError` where no environment can be made.
        """
        if name not in PLAY_ABILITIES:
            remedy = nearest(name, sorted(PLAY_ABILITIES))
            raise ConfigError(f"env_needs: '{name}' is no ability of an environment: {remedy}")
        if not self._worlds:
            self._worlds = [await self._probe(world) for world in worlds_of(self.family)]
        return " and ".join(filter(None, (_lacking_in(world, name) for world in self._worlds)))

    async def _probe(self, world: EnvFamily) -> list[Probed]:
        kinds = first_of_kinds(world, self.split)
        return [Probed(tags, task.env, await self._abilities(world, task)) for tags, task in kinds]

    async def _abilities(self, world: EnvFamily, task: Task) -> frozenset[str]:
        try:
            env = world.make(task)
            found = play_abilities(env)
            await contained(call_env(env.close, self.limits, Timeline()))
        except SojournError:
            raise
        except Exception as error:  # raised by the world's code: where we called it is of no help to its user
            raise InfrastructureError(
                f"an environment of the world cannot be made: {type(error).__name__}: {error}"
            ) from error
        return found


def _lacking_in(world: list[Probed], name: str) -> str:
    """Returns which environments of one world lack an ability: all of them, or those of some kinds of tasks."""
    without = [", ".join(one.tags) for one in world if name not in one.abilities]
    if not without:
        return ""
    of_world = f"the world '{world[0].env}'"
    if len(without) == len(world):
        return of_world
    more = f" and {len(without) - MAX_NAMED} others" if len(without) > MAX_NAMED else ""
    named = ", ".join(f"'{kind}'" for kind in without[:MAX_NAMED])
    return f"{of_world} for its tasks {named}{more}"


def first_of_kinds(world: EnvFamily, split: str) -> Iterator[tuple[tuple[str, ...], Task]]:
    """Yields the first task with each combination of tags, as those of other tags may be another page or level."""
    seen = set[tuple[str, ...]]()
    for task in islice(iter(world.tasks(split)), MAX_TASKS):
        if task.tags not in seen:
            seen.add(task.tags)
            yield task.tags, task


class FirstPlay(NamedTuple):
    """A play that has begun: its environment, what it shows first, and its task."""

    env: Env
    shown: Observation
    task: Task


def named(task: Task) -> str:
    """Returns the world of a task with the task's kind, in words."""
    return f"the world '{task.env}'" + (f" for its tasks '{', '.join(task.tags)}'" if task.tags else "")


Look = Callable[[FirstPlay], Awaitable[None]]


async def look_at_first_plays(family: EnvFamily, split: str, limits: Limits, look: Look, most: int) -> None:
    """Begins the first task of each kind, at most so many in each world, has it looked at, and closes it.

    What `look` raises of ours is raised. A world that fails is passed over: its first episode tells of it, with its
    turns.
    """
    for world in worlds_of(family):
        for _, task in islice(first_of_kinds(world, split), most):
            try:
                await contained(_look_at(world, task, limits, look))
            except (ConfigError, RenderError) as error:
                raise ConfigError(f"{named(task)}: {error}") from error
            except (Exception, SystemExit):
                continue


async def _look_at(world: EnvFamily, task: Task, limits: Limits, look: Look) -> None:
    env, timeline = world.make(task), Timeline()
    try:
        shown = await call_env(env.start, limits, timeline)
        await look(FirstPlay(env, shown, task))
    finally:
        await call_env(env.close, limits, timeline)
