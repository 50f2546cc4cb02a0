"""Makes a recipe of the merged tables of a config: keys that stages share, defaults, and the origin of each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.config import toml
from sojourn.config.lookup import find
from sojourn.config.old_keys import STAGES
from sojourn.config.registry import construct, shown, unknown_key
from sojourn.errors import ConfigError
from sojourn.searchers.search import Search
from sojourn.train.recipe import STAGE_NAME, ModelRecipe, Recipe, Stage
from sojourn.train.repeats import unroll
from sojourn.train.requirements import check_needs


class Resolved(NamedTuple):
    recipe: Recipe
    table: dict[str, Any]  # complete, defaults included: it resolves to the same recipe
    origins: Mapping[str, str]  # where each value that is no default came from, by its dotted path


SHARED, OWN_KEYS = "shared", "own"  # the layers of a stage's table
TRAINING_KEYS = frozenset({"losses", "minibatches", "optim"})  # of a stage
STAGE_KEYS = tuple(f.name for f in fields(Stage) if f.name != "name")


def resolve(tables: toml.Tables) -> Resolved:
    """Makes a recipe of merged tables. The keys of a stage at the top level are the defaults of every stage."""
    return tables.built(lambda: _resolve(tables))


def _resolve(tables: toml.Tables) -> Resolved:
    data = dict(tables.data)
    shared = {key: data.pop(key) for key in STAGE_KEYS if key in data}
    stage_tables = data.pop("stages", None)
    if stage_tables is None:
        stage_tables = [{"name": "train"}]
    if not isinstance(stage_tables, list) or not all(isinstance(item, Mapping) for item in stage_tables):
        raise ConfigError(
            f"stages = {shown(stage_tables)}: expected an array of tables, [[stages]]; tables by name, such as "
            "stages.rl.steps = 20, change the stages of a file that is extended"
        )
    if not stage_tables:
        raise ConfigError("stages = []: a recipe needs at least one stage, [[stages]]")
    merged = [_with_shared(shared, own) for own in stage_tables]
    labels = [_stage_label(number, stage) for number, stage in enumerate(merged)]
    toml.refuse_unused(shared, merged, labels, tables)
    merged = [_without_training(stage) for stage in merged]
    _check_keys(data)
    if (old := tables.renamed.get("agent")) is not None and "base" not in (agent := data["agent"]):
        data["agent"] = _with_base(agent, old, tables)
    built = construct(Recipe, {**data, "stages": []}, "")
    numbers = list(range(len(merged)))
    if built.value.repeats:
        unrolled = unroll([m.data.get("name", "train") for m in merged], built.value.repeats)
        merged = [
            _without_training(_with_shared(shared, {**stage_tables[number], "name": name})) for number, name in unrolled
        ]
        numbers, labels = [number for number, _ in unrolled], [name for _, name in unrolled]
    stages = [construct(Stage, m.data, f"stages.{label}", STAGES) for label, m in zip(labels, merged, strict=True)]
    names = [stage.value.name for stage in stages]
    if len(set(names)) < len(names):
        raise ConfigError(f"stages have the names {', '.join(names)}: give each its own")
    recipe = built.value.__class__(
        **{f.name: getattr(built.value, f.name) for f in fields(Recipe) if f.name != "stages"},
        stages=tuple(stage.value for stage in stages),
    )
    _check_evaluation_names(recipe)
    check_needs(recipe)
    return Resolved(recipe, {**built.table, "stages": [s.table for s in stages]}, _origins(tables, merged, numbers))


def _with_base(agent: Mapping[str, Any], old: Mapping[str, Any], tables: toml.Tables) -> Mapping[str, Any]:
    """Returns the table of an agent that an override named in place of another: one that searches has that one as its
    base, so that `agent.name=mcts` adds a search to what the agent does."""
    cls = find("agent", agent["name"]) if isinstance(agent["name"], str) else None
    if not (isinstance(cls, type) and issubclass(cls, Search)):
        return agent
    own = [key for key in agent if key == "name" or tables.precedence(f"agent.{key}") == toml.COMMAND_LINE]
    return {**{key: agent[key] for key in own}, "base": dict(old)}


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


def _without_training(stage: toml.Tables) -> toml.Tables:
    """Returns a stage's table; where the stage does not train, without what only training uses of the shared keys."""
    if stage.data.get("trains", True) is not False:
        return stage
    layers = [(path.partition(".")[0], path, layer) for path, layer in stage.origins.items()]
    unused = TRAINING_KEYS - {key for key, _, layer in layers if layer == OWN_KEYS}
    data = {key: value for key, value in stage.data.items() if key not in unused}
    return toml.Tables(data, {path: layer for key, path, layer in layers if key not in unused})


def _origins(tables: toml.Tables, stages: Sequence[toml.Tables], written: Sequence[int]) -> dict[str, str]:
    """Returns the origin of each value of the resolved recipe that is not a default, by its dotted path; `written` has
    the number under which each stage was written."""
    origins = {path: origin for path, origin in tables.origins.items() if path.partition(".")[0] not in STAGE_KEYS}
    for number, stage in enumerate(stages):
        for path, layer in stage.origins.items():
            source = path if layer == SHARED else f"stages.{written[number]}.{path}"
            origins[f"stages.{number}.{path}"] = tables.origins.get(source, "")
    return origins


def _stage_label(number: int, stage: toml.Tables) -> str:
    """Returns the name of a stage, or its number where it has no valid name."""
    name = stage.data.get("name")
    return name if isinstance(name, str) and STAGE_NAME.holds(name) else str(number)


def load_model(config: Mapping[str, Any]) -> ModelRecipe:
    """Makes the part of a run's recipe that its model is made of, from the run's whole config."""
    own = {f.name: config[f.name] for f in fields(ModelRecipe) if f.name in config}
    return construct(ModelRecipe, own, "").value


def load(path: Path, overrides: Sequence[str] = ()) -> Resolved:
    """Reads and resolves a recipe, or the config of a run folder."""
    return resolve(toml.read(path, overrides))
