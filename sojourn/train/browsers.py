"""Checks that the agent of a recipe can drive the browsers of its world."""

from __future__ import annotations

from sojourn.abilities import ActsByProgram, PlacesWorlds, browser_only, drives_browsers
from sojourn.agents.program import Program
from sojourn.errors import ConfigError
from sojourn.protocols import EnvFamily
from sojourn.rollout.world import worlds_of
from sojourn.train.recipe import Recipe

PLACEHOLDERS = ("{cdp_url}", "{cdp_socket}")


def check_browsers(recipe: Recipe) -> None:
    """Refuses an agent that cannot drive the browsers of a world which is acted in by them alone, and a
    program that asks for a browser where there is none."""
    agent, worlds = recipe.agent, [world for world in worlds_of(recipe.env) if browser_only(world)]
    if not worlds:
        asked = [one for one in PLACEHOLDERS if isinstance(agent, Program) and agent.mentions(one)]
        if asked:
            raise ConfigError(f"the agent asks for {asked[0]}, but no world here has a browser for it: leave it out")
        return
    name = type(worlds[0]).__name__.lower()
    if not drives_browsers(agent):
        who = agent.program if isinstance(agent, ActsByProgram) else f"the agent {type(agent).__name__.lower()!r}"
        raise ConfigError(
            f"env {name!r} is acted in by its browser alone, over CDP, which {who} cannot reach: take the agent "
            '"program" with sandbox = true, or with {cdp_socket} in its command, or another surface of the world'
        )
    if isinstance(agent, Program) and not agent.sandbox and agent.mentions("{cdp_url}"):
        raise ConfigError(
            "the agent asks for {cdp_url}, which a sandbox alone has: use {cdp_socket}, or sandbox = true"
        )


def placed(recipe: Recipe) -> EnvFamily:
    """Returns the family whose plays are where the backend has them; refuses plays with browsers elsewhere."""
    if not isinstance(recipe.backend, PlacesWorlds):
        return recipe.env
    family = recipe.backend.place(recipe.env)
    if family is not recipe.env and any(browser_only(world) for world in worlds_of(recipe.env)):
        raise ConfigError(
            "env: its plays are acted in by browsers, which programs reach from the process that trains alone, but the "
            "backend has plays in others: set backend.envs.workers = 0"
        )
    return family
