"""Checks what an agent that is a program needs of a recipe."""

from __future__ import annotations

from sojourn.abilities import ActsByProgram, Branches, GivesSamples, parts_of
from sojourn.agents.program import Program
from sojourn.agents.remote import Remote
from sojourn.errors import ConfigError
from sojourn.sources.experts import Experts
from sojourn.train.recipe import Recipe


def check_programs(recipe: Recipe) -> None:
    """Refuses sources that give the samples of plays, or fork them, where programs act: their prompts are known when
    they ask, and none can be copied; and presets and tokens that are not
    here."""
    if not isinstance(recipe.agent, ActsByProgram):
        return
    if isinstance(recipe.agent, Program | Remote):
        recipe.agent.require_installed()
    for stage in recipe.stages:
        for part in parts_of(stage.groups):
            if isinstance(part, Experts) or (isinstance(part, GivesSamples) and part.gives_samples):
                does = "gives the samples of plays"
            elif isinstance(part, Branches) and part.forks:
                does = "forks plays"
            else:
                continue
            raise ConfigError(
                f"stage '{stage.name}': {type(part).__name__} {does}, but {recipe.agent.program} acts, which asks the "
                "model by itself and cannot be copied: train this stage with another agent, or on live episodes (slots)"
            )
