"""Tells a backend that opens further models in processes of their own how many of each a run has open."""

from __future__ import annotations

from collections.abc import Mapping

from sojourn.abilities import FurtherModel, PlacesModels, SharesBase, play_lag
from sojourn.models.spec import Model, Snapshots
from sojourn.train.named_models import find_models
from sojourn.train.recipe import Recipe


def further_models(recipe: Recipe) -> dict[str, FurtherModel]:
    """Returns the further models whose weights are here. Raises `RecordError` for weights that no run has."""
    found = {name: one.model for name, one in find_models(recipe).items()}
    pools = {name: recipe.model for name, model in recipe.models.items() if model.snapshots is not None}
    return _further(recipe, found | pools)


def check_further_models(recipe: Recipe) -> None:
    """Refuses the backend's config of processes that no model has."""
    if isinstance(recipe.backend, PlacesModels):
        recipe.backend.check_models(_further(recipe, {}))


def reserve_further_models(recipe: Recipe) -> None:
    """Reserves room for the further models, where the backend, which is open, has them in other processes."""
    if isinstance(recipe.backend, PlacesModels):
        recipe.backend.reserve_models(further_models(recipe))


def _further(recipe: Recipe, models: Mapping[str, Model]) -> dict[str, FurtherModel]:
    return {
        name: FurtherModel(
            samplers=_open_at_once(recipe, model.snapshots) if name in recipe.players else 0,
            trainers=int(name in recipe.learning or name in recipe.value_models),
            model=models.get(name),
        )
        for name, model in recipe.models.items()
        if model.endpoint is None
    }


def _open_at_once(recipe: Recipe, snapshots: Snapshots | None) -> int:
    """Returns how many samplers a table `[models.NAME]` may have open at once: one, or, of a pool, `keep` snapshots,
    those newer ones that plays which began up to `max_lag` steps early may not meet yet, and the newest, which is
    opened before the oldest is closed. It is none where the policy's samplers sample the pool's adapters."""
    if snapshots is None:
        return 1
    if recipe.model.lora is not None and isinstance(recipe.backend, SharesBase) and recipe.backend.shares_base:
        return 0
    lag = max((play_lag(stage.groups) for stage in recipe.stages), default=0)
    return snapshots.keep + 1 + -(-lag // snapshots.every)
