"""Runs a recipe to its end, also where processes that train the model are lost on the way."""

from __future__ import annotations

from sojourn.abilities import Restarts
from sojourn.display import Display
from sojourn.errors import RankError
from sojourn.record.run import RunFolder
from sojourn.record.summary import Summary
from sojourn.train.recipe import Recipe
from sojourn.train.run import run_recipe


async def run_to_end(
    recipe: Recipe, folder: RunFolder, display: Display, *, resume: bool = False
) -> dict[str, Summary]:
    """Runs a recipe as `run_recipe` does. Where a trainer's rank is lost, opens everything anew and goes on from the
    newest checkpoint, as often as the backend says."""
    left = recipe.backend.restarts if isinstance(recipe.backend, Restarts) else 0
    while True:
        try:
            return await run_recipe(recipe, folder, display, resume=resume)
        except RankError as error:
            if not left:
                raise RankError(
                    f"{error}: `sojourn train {folder.path} --resume` goes on from the last checkpoint"
                ) from error
            left, resume = left - 1, True
            display.message(f"{error}: the run goes on from its last checkpoint")
