"""Finds out whether the plays of a family offer an ability that a recipe needs of them."""

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
    """Returns whether the plays of a family offer one of `PLAY_ABILITIES`, by the first task of a split of each world.

    Raises `InfrastructureError` where there cannot even be one play.
    """
    if name not in PLAY_ABILITIES:
        raise ConfigError(f"env_needs: '{name}' is nothing that plays may offer: {nearest(name, PLAY_ABILITIES)}")
    offered = True
    for world in worlds_of(family):
        try:
            env = world.make(world.tasks(split)[0])
            await contained(call_env(env.close, limits, Timeline()))
        except SojournError:
            raise
        except Exception as error:  # the world's own, which no user of it can mend by looking at where we called it
            raise InfrastructureError(f"a play of the world cannot be made: {type(error).__name__}: {error}") from error
        offered = offered and isinstance(env, PLAY_ABILITIES[name])
    return offered
