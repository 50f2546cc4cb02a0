"""Finds out whether the environments of a family have an optional ability that a recipe needs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from sojourn.abilities import PLAY_ABILITIES, has_expert
from sojourn.config.lookup import nearest
from sojourn.errors import ConfigError, InfrastructureError, SojournError
from sojourn.event_loop import contained
from sojourn.protocols import Env, EnvFamily
from sojourn.rollout.limits import Limits, call_env
from sojourn.rollout.world import worlds_of
from sojourn.timeline import Timeline
from sojourn.types import Task

MAX_TASKS = 256  # of a split, among which the kinds of tasks are looked for
MAX_NAMED = 5  # kinds of tasks that a message names


async def lacking(family: EnvFamily, name: str, limits: Limits, split: str = "train") -> str:
    """Returns which environments of a family lack one of `PLAY_ABILITIES`, by the first task of each kind, such as "the
    world 'web' for its tasks 'draw'"; the empty text where all have it.

    Raises `InfrastructureError` where no environment can be made.
    """
    if name not in PLAY_ABILITIES:
        remedy = nearest(name, sorted(PLAY_ABILITIES))
        raise ConfigError(f"env_needs: '{name}' is no ability of an environment: {remedy}")
    found: list[str] = []
    for world in worlds_of(family):
        first = {kind: [task, await _offers(world, task, name, limits)] for kind, task in first_of_kinds(world, split)}
        without = [", ".join(kind) for kind, (_, offers) in first.items() if not offers]
        of_world = f"the world '{next(iter(first.values()))[0].env}'" if first else ""
        if len(without) == len(first) and without:
            found.append(of_world)
        elif without:
            more = f" and {len(without) - MAX_NAMED} others" if len(without) > MAX_NAMED else ""
            named = ", ".join(f"'{kind}'" for kind in without[:MAX_NAMED])
            found.append(f"{of_world} for its tasks {named}{more}")
    return " and ".join(found)


def first_of_kinds(world: EnvFamily, split: str) -> Iterator[tuple[tuple[str, ...], Task]]:
    """Yields the first task with each combination of tags, as those of other tags may be another page or level."""
    seen = set[tuple[str, ...]]()
    for task in islice(iter(world.tasks(split)), MAX_TASKS):
        if task.tags not in seen:
            seen.add(task.tags)
            yield task.tags, task


async def _offers(world: EnvFamily, task: Task, name: str, limits: Limits) -> bool:
    try:
        env = world.make(task)
        offered = _has(env, name)
        await contained(call_env(env.close, limits, Timeline()))
    except SojournError:
        raise
    except Exception as error:  # raised by the world's code: where we called it is of no help to its user
        raise InfrastructureError(
            f"an environment of the world cannot be made: {type(error).__name__}: {error}"
        ) from error
    return offered


def _has(env: Env, name: str) -> bool:
    return has_expert(env) if name == "expert" else isinstance(env, PLAY_ABILITIES[name])
