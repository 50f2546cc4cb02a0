"""The people whom agents of a run ask: checks that they can be asked, and says where they answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sojourn.abilities import AsksPeople, with_base_agents
from sojourn.errors import ConfigError
from sojourn.models.asked_person import PERSON, Patience
from sojourn.train.recipe import Recipe


def patience_of(recipe: Recipe) -> Patience | None:
    """Returns how long the agents of a recipe wait for people, of which one agent alone asks any; None where none
    does."""
    return next(_patiences(recipe), None)


def check_people(recipe: Recipe) -> None:
    """Refuses what does not go together with people that are asked."""
    patience = patience_of(recipe)
    if patience is None:
        return
    if PERSON in recipe.models:
        raise ConfigError(f"models.{PERSON}: '{PERSON}' is whom the agent asks: give this model another name")
    if patience.wait_s and recipe.rollout.limits.seconds:
        raise ConfigError(
            f"rollout.limits.seconds = {recipe.rollout.limits.seconds:g} would end plays while a person thinks, and "
            f"where depends on the clock: expected no such limit with wait_s = {patience.wait_s:g}: leave it out, and "
            "bound plays by rollout.limits.turns"
        )


def require_nobody(recipe: Recipe, where: str) -> None:
    """Refuses to ask people where there is no run folder in which they could answer."""
    patience = patience_of(recipe)
    if patience is not None and patience.wait_s:
        raise ConfigError(
            f"the agent waits {patience.wait_s:g} s for a person, who answers in the folder of a run, and {where} has "
            "none: set its wait_s to 0, and it is told what it would be where nobody answers; or name a model that "
            "answers (person)"
        )


def people_note(recipe: Recipe, folder: Path) -> str:
    """Returns a sentence that says where people answer; empty where they are not asked."""
    patience = patience_of(recipe)
    if patience is None or not patience.wait_s:
        return ""
    return (
        f"agents may ask a person, and wait {patience.wait_s:g} s: answer by `sojourn answer {folder}`, or in the "
        "browser with `sojourn view --answer`"
    )


def _patiences(recipe: Recipe) -> Iterator[Patience]:
    for one in with_base_agents(recipe.agent):
        if isinstance(one, AsksPeople) and one.patience is not None:
            yield one.patience
