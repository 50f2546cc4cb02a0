"""Finds out whether the environments of a family have an optional ability that a recipe needs."""

from __future__ import annotations

from sojourn.abilities import PLAY_ABILITIES
from sojourn.config.lookup import nearest
from sojourn.errors import ConfigError, InfrastructureError, SojournError
from sojourn.event_loop import contained
from sojourn.protocols import EnvFamily
from sojourn.rollout.limits import Limits, call_env
from sojourn.rollout.world import worlds_of
from sojourn.timeline import Timeline


async def offers(family: EnvFamily, name: str, limits: Limits, split: str = "train") -> bool:
    """Returns whether the environments of a family have one of `PLAY_ABILITIES`, by the first task of each world.

    Raises `InfrastructureError` where no environment can be made.
    """
    if name not in PLAY_ABILITIES:
        raise ConfigError(f"env_needs: '{name}' is no ability of an environment: {nearest(name, PLAY_ABILITIES)}")
    offered = True
    for world in worlds_of(family):
        try:
            env = world.make(world.tasks(split)[0])
            await contained(call_env(env.close, limits, Timeline()))
        except SojournError:
            raise
        except Exception as error:  # raised by the world's code: where we called it is of no help to its user
            raise InfrastructureError(
                f"an environment of the world cannot be made: {type(error).__name__}: {error}"
            ) from error
        offered = offered and isinstance(env, PLAY_ABILITIES[name])
    return offered
