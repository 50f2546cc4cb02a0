"""Parses the arguments that several commands share: recipes, components by name, and overrides."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sojourn import threads
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from sojourn.config.toml import Tables
    from sojourn.protocols import EnvFamily
    from sojourn.train.recipe import ModelRecipe, Recipe
    from sojourn.train.resolve import Resolved

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Values that replace those of a recipe, by their dotted keys, such as stages.rl.optim.lr=3e-6; those of a "
        "component that is named have its own keys, such as rooms=4."
    ),
]
RecordedIn = Annotated[
    Path | None, typer.Option(help="The run whose recorded episodes are read. (default: the same run)")
]
StageOfPolicy = Annotated[str, typer.Option(help="Its stage. (default: the only one whose episodes a policy sampled)")]
StepsOfStage = Annotated[
    str, typer.Option(help="Its steps, such as 0:10 for those from 0 to 9. (default: all of the stage)")
]


def load(path: Path, overrides: list[str] | None) -> Resolved:
    """Reads a recipe with its overrides."""
    from sojourn.config import toml

    return resolve_tables(toml.read(path, overrides or ()))


def resolve_tables(tables: Tables) -> Resolved:
    """Builds a recipe from its tables."""
    threads.prepare_for(tables.data)
    from sojourn.train.resolve import resolve

    return resolve(tables)


def build_world(name: str, overrides: list[str] | None) -> Any:
    """Returns an environment by its registered name or 'module:Class', or the environment of a recipe."""
    threads.prepare()
    return load(Path(name), overrides).recipe.env if is_file(name) else build_component("env", name, overrides)


def is_file(name: str) -> bool:
    """Returns whether a name is that of a recipe or a run folder, rather than of an environment."""
    from sojourn.config.lookup import is_registered

    path = Path(name)
    return path.suffix == ".toml" or (path.exists() and not is_registered("env", name))


def world_and_table(name: str, overrides: list[str] | None) -> tuple[Any, dict[str, Any]]:
    """Returns an environment as `build_world` does, and its complete config."""
    from sojourn.config import toml
    from sojourn.config.registry import build

    threads.prepare()
    if is_file(name):
        for override in overrides or ():
            if not f"{override.partition('=')[0].strip()}.".startswith(("env.", "rollout.limits.")):
                raise ConfigError(f"override '{override}': a match uses only [env] and [rollout.limits]: leave it out")
        tables = toml.read(Path(name), overrides or ())
        if "env" not in tables.data:
            raise ConfigError(
                f"'{name}' has no table [env], so it names no environment: name an environment or a recipe"
            )
        built = build("env", tables.data["env"], "env")
        return built.value, {**tables.data, "env": built.table}
    tables = toml.Tables({"name": name})
    for override in overrides or []:
        tables.override(override.removeprefix("env."))
    built = build("env", tables.data, "env")
    return built.value, {"env": built.table}


def build_component(kind: str, name: str, overrides: list[str] | None) -> Any:
    """Returns a component by its name, with the overrides applied to its fields."""
    from sojourn.config import toml
    from sojourn.config.registry import build

    threads.prepare()
    tables = toml.Tables({"name": name})
    for override in overrides or []:
        tables.override(override.removeprefix(f"{kind}."))
    return build(kind, tables.data, kind).value


def print_risks(family: EnvFamily) -> None:
    """Prints a line for each protection of an environment that this machine does not provide."""
    from sojourn.abilities import HasRisks
    from sojourn.rollout.world import worlds_of

    found = [risk for world in worlds_of(family) if isinstance(world, HasRisks) for risk in world.risks()]
    for risk in dict.fromkeys(found):
        print(f"note: {risk}", file=sys.stderr)


def print_slowdowns(recipe: Recipe | ModelRecipe) -> None:
    """Prints a line for each thing that the backend computes more slowly for this model on this machine than it
    could."""
    from sojourn.abilities import HasSlowdowns

    for sentence in recipe.backend.slowdowns(recipe.model) if isinstance(recipe.backend, HasSlowdowns) else ():
        print(f"note: {sentence}", file=sys.stderr)


def print_unverified(recipe: Recipe) -> None:
    """Prints a line for each method of a recipe that was written without reading its source."""
    from sojourn import method_docs

    for sentence in dict.fromkeys(method_docs.unverified(recipe)):
        print(f"note: {sentence}", file=sys.stderr)


def print_too_few_plays(recipe: Recipe) -> None:
    """Prints a line where the evaluations are too small to say which weights may serve."""
    plays = recipe.evaluation.tasks * recipe.evaluation.samples
    if recipe.release is not None and (sentence := recipe.release.too_few(plays)):
        print(f"note: {sentence}", file=sys.stderr)


def parse_steps(text: str) -> range | None:
    """Reads steps of a stage, such as 0:10; None where none are named."""
    if not text:
        return None
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise ConfigError(f"--steps {text}: expected two numbers, such as 0:10 for the steps from 0 to 9")
    return range(int(first), int(end))
