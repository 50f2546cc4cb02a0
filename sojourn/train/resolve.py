"""Makes a recipe of the merged tables of a config: keys that stages share, defaults, and the origin of each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.config import toml
from sojourn.config.old_keys import STAGES
from sojourn.config.registry import construct, shown, unknown_key
from sojourn.errors import ConfigError
from sojourn.train.recipe import STAGE_NAME, Recipe, Stage
from sojourn.train.requirements import check_needs


class Resolved(NamedTuple):
    recipe: Recipe
    table: dict[str, Any]  # complete, defaults included: it resolves to the same recipe
    origins: Mapping[str, str]  # where each value that is no default came from, by its dotted path


SHARED, OWN_KEYS = "shared", "own"  # the layers of a stage's table
STAGE_KEYS = tuple(f.name for f in fields(Stage) if f.name != "name")


def resolve(tables: toml.Tables) -> Resolved:
    """Makes a recipe of merged tables. The keys of a stage at the top level are the defaults of every stage."""
    data = dict(tables.data)
    shared = {key: data.pop(key) for key in STAGE_KEYS if key in data}
    stage_tables = data.pop("stages", None)
    if stage_tables is None:
        stage_tables = [{"name": "train"}]
    if not isinstance(stage_tables, list) or not all(isinstance(item, Mapping) for item in stage_tables):
        raise ConfigError(f"stages = {shown(stage_tables)}: expected an array of tables, [[stages]]")
    if not stage_tables:
        raise ConfigError("stages = []: a recipe needs at least one stage, [[stages]]")
    merged = [_with_shared(shared, own) for own in stage_tables]
    labels = [_stage_label(number, stage) for number, stage in enumerate(merged)]
    toml.refuse_unused(shared, merged, labels, tables)
    stages = [construct(Stage, m.data, f"stages.{label}", STAGES) for label, m in zip(labels, merged, strict=True)]
    names = [stage.value.name for stage in stages]
    if len(set(names)) < len(names):
        raise ConfigError(f"stages have the names {', '.join(names)}: give each its own")
    _check_keys(data)
    built = construct(Recipe, {**data, "stages": []}, "")
    recipe = built.value.__class__(
        **{f.name: getattr(built.value, f.name) for f in fields(Recipe) if f.name != "stages"},
        stages=tuple(stage.value for stage in stages),
    )
    _check_evaluation_names(recipe)
    check_needs(recipe)
    return Resolved(recipe, {**built.table, "stages": [stage.table for stage in stages]}, _origins(tables, merged))


def _check_evaluation_names(recipe: Recipe) -> None:
    """Refuses a stage that has the name of another stage's evaluation, whose results it would replace."""
    every, names = recipe.evaluation.every, {stage.name for stage in recipe.stages}
    for stage in recipe.stages if every else ():
        for step in range(every, stage.steps, every):
            if (evaluation := f"{stage.name}-{step}") in names:
                raise ConfigError(
                    f"a stage is called '{evaluation}', as is the evaluation of the stage '{stage.name}' after step "
                    f"{step}: give the stage another name, such as '{stage.name}_{step}'"
                )


def _check_keys(data: Mapping[str, Any]) -> None:
    known = [f.name for f in fields(Recipe)] + list(STAGE_KEYS) + [toml.PARENT]
    for key in data:
        if key not in known:
            raise unknown_key(key, known)


def _with_shared(shared: Mapping[str, Any], own: Mapping[str, Any]) -> toml.Tables:
    """Lays a stage's own keys over those that all stages share."""
    merged = toml.Tables()
    merged.merge(shared, SHARED)
    merged.merge(own, OWN_KEYS)
    return merged


def _origins(tables: toml.Tables, stages: Sequence[toml.Tables]) -> dict[str, str]:
    """Returns the origin of each value of the resolved recipe that is not a default, by its dotted path."""
    origins = {path: origin for path, origin in tables.origins.items() if path.partition(".")[0] not in STAGE_KEYS}
    for number, stage in enumerate(stages):
        for path, layer in stage.origins.items():
            own = f"stages.{number}.{path}"
            origins[own] = tables.origins.get(path if layer == SHARED else own, "")
    return origins


def _stage_label(number: int, stage: toml.Tables) -> str:
    """Returns the name of a stage, or its number where it has no valid name."""
    name = stage.data.get("name")
    return name if isinstance(name, str) and STAGE_NAME.holds(name) else str(number)


def load(path: Path, overrides: Sequence[str] = ()) -> Resolved:
    """Reads and resolves a recipe, or the config of a run folder."""
    return resolve(toml.read(path, overrides))
