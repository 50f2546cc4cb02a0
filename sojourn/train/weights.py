"""Finds the weights that a run starts from, identifies them, and checks that a resumed run still has the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sojourn.abilities import Identifies
from sojourn.errors import RecordError
from sojourn.models.spec import Lora
from sojourn.record.atomic import new_folder
from sojourn.record.checkpoint import Checkpoint
from sojourn.record.run import RunFolder
from sojourn.record.run_weights import NamedRun, find_weights
from sojourn.train import trained_models
from sojourn.train.named_models import described, find_models, model_identities
from sojourn.train.recipe import ModelRecipe, Recipe
from sojourn.train.seating import POLICY

if TYPE_CHECKING:
    from sojourn.train.assemble import Components

INITIAL = "initial"  # a folder in the run folder


def found_weights(recipe: Recipe | ModelRecipe) -> Checkpoint | None:
    """Returns the checkpoint that `model.weights` names, or None where it names none."""
    if not recipe.model.weights:
        return None
    folder, name = NamedRun.parse(recipe.model.weights)
    if not (folder / "config.toml").is_file():
        raise RecordError(
            f"model.weights = '{recipe.model.weights}': expected a run folder, such as runs/x, or runs/x@120 for the "
            "weights after 120 steps: there is no run with a complete checkpoint at this path"
        )
    found = find_weights(folder, name).checkpoint
    if found is None:
        raise RecordError(
            f"model.weights = '{recipe.model.weights}' names the weights that the run began with: leave it out, and "
            "set model.name (and model.weights) as that run does"
        )
    _check_adapters(recipe, folder)
    return found


async def initial_weights(components: Components) -> None:
    """Loads the weights that the recipe starts from into trainer and sampler."""
    found = found_weights(components.recipe)
    if found is not None:
        _check_critic(components.recipe, found)
        components.trainer.load(found.weights, weights_only=True)
    if found is not None or components.recipe.model.lora:
        await components.trainer.publish()
    others = find_models(components.recipe)
    for model, trainer in components.trainers.items():
        if model != POLICY and (weights := others[model].weights) is not None:
            trainer.load(weights, weights_only=True)
            await trainer.publish()


def keep_initial(components: Components, folder: RunFolder) -> None:
    """Saves the weights that a run begins with, where a later stage begins with them again."""
    if any(stage.restart for stage in components.recipe.stages[1:]):
        with new_folder(folder.path / INITIAL, replace=True) as temporary:
            trained_models.save(components.trainers, temporary)


async def restore_initial(components: Components, folder: RunFolder) -> None:
    """Loads the weights that a run began with into trainer and sampler."""
    trained_models.load(components.trainers, folder.path / INITIAL)
    await trained_models.publish(components.trainers)


def _check_adapters(recipe: Recipe | ModelRecipe, run: Path) -> None:
    """Refuses adapters that were trained over another base than the recipe's, or with another alpha: they would add
    something else to it."""
    folder, model = RunFolder.read(run), recipe.model
    table = folder.config.get("model", {})
    lora = table.get("lora")
    if model.lora is None or lora is None:  # then they are no adapters, or no longer, as the backend says
        return
    backend = recipe.backend
    own = backend.identities(model, None).get(POLICY, "") if isinstance(backend, Identifies) else ""
    recorded = folder.models.get(POLICY, "")
    compared: dict[str, tuple[Any, Any]] = {"model.lora.alpha": (lora.get("alpha", Lora.alpha), model.lora.alpha)}
    if recorded and own and recorded != own:
        compared["model.name"] = f"{table.get('name')} ({recorded})", f"{model.name} ({own})"
    if re.fullmatch(r"tiny(:.*)?", model.name):  # whose weights follow from the seed
        compared["seed"] = folder.config.get("seed", 0), recipe.seed
    for key, (then, here) in compared.items():
        if then != here:
            raise RecordError(
                f"model.weights = '{model.weights}' are adapters that were trained with {key} = {then}, and this "
                f"recipe has {here}, where they add something else: set {key} as that run does"
            )


def _check_critic(recipe: Recipe, found: Checkpoint) -> None:
    """Refuses a critic that no stage trains, unless the weights to start from include one."""
    trained = any("critic" in loss.needs for stage in recipe.stages for loss in stage.losses)
    if recipe.critic is not None and not trained and not (found.weights / "critic.safetensors").exists():
        raise RecordError(
            f"model.weights = '{recipe.model.weights}' has no critic, and no stage trains one: add losses = [{{name = "
            "'value'}]"
        )


def identities(recipe: Recipe) -> dict[str, str]:
    """Returns the identity of the weights of each of the recipe's models on this machine, where its backend knows
    it."""
    backend = recipe.backend
    own = backend.identities(recipe.model, recipe.critic) if isinstance(backend, Identifies) else {}
    return {**own, **model_identities(recipe)}


def check_models(recipe: Recipe, folder: RunFolder) -> None:
    """Refuses to go on with other weights than those that the run began with."""
    current = identities(recipe)
    for role, recorded in folder.models.items():
        if recorded != current.get(role, ""):
            raise RecordError(
                f"{folder.path} began with the {role} model '{described(role, recipe)}' as {recorded}, but here it is "
                f"{current.get(role) or 'missing'}: put those weights back (of a hub model, download that commit; of "
                "a run, name the weights that it had then, such as runs/x@last), or start a new run"
            )
