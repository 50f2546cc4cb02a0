"""What commands are given: recipes, components by name, and overrides."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sojourn import threads
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from sojourn.protocols import EnvFamily
    from sojourn.train.recipe import Recipe
    from sojourn.train.resolve import Resolved

Overrides = Annotated[list[str] | None, typer.Argument(help="dotted overrides, such as stages.rl.optim.lr=3e-6")]


def load(path: Path, overrides: list[str] | None) -> Resolved:
    """Reads a recipe with torch's threads prepared first: components may import torch."""
    from sojourn.config import toml

    tables = toml.read(path, overrides or ())
    wanted = tables.data.get("backend", {})
    count = wanted.get("threads", 0) if isinstance(wanted, dict) else 0
    threads.prepare(max(count, 0) if isinstance(count, int) else 0)
    from sojourn.train.resolve import resolve

    return resolve(tables)


def build_world(name: str, overrides: list[str] | None) -> Any:
    """A world by its registered name, as 'module:Class', or that of a recipe."""
    threads.prepare()
    return load(Path(name), overrides).recipe.env if Path(name).exists() else build_component("env", name, overrides)


def world_and_table(name: str, overrides: list[str] | None) -> tuple[Any, dict[str, Any]]:
    """A world as `build_world` finds it, and the config that describes it, whole."""
    from sojourn.config import toml
    from sojourn.config.registry import build

    threads.prepare()
    if Path(name).exists():
        for override in overrides or ():
            if not f"{override.partition('=')[0].strip()}.".startswith(("env.", "rollout.limits.")):
                raise ConfigError(f"override '{override}': a match takes env and rollout.limits alone: leave it out")
        tables = toml.read(Path(name), overrides or ())
        if "env" not in tables.data:
            raise ConfigError(f"'{name}' has no table [env], so there is no world to play in: name a world or a recipe")
        built = build("env", tables.data["env"], "env")
        return built.value, {**tables.data, "env": built.table}
    tables = toml.Tables({"name": name})
    for override in overrides or []:
        tables.override(override.removeprefix("env."))
    built = build("env", tables.data, "env")
    return built.value, {"env": built.table}


def build_component(kind: str, name: str, overrides: list[str] | None) -> Any:
    """A component by its name, with what the overrides say of its fields."""
    from sojourn.config import toml
    from sojourn.config.registry import build

    threads.prepare()
    tables = toml.Tables({"name": name})
    for override in overrides or []:
        tables.override(override.removeprefix(f"{kind}."))
    return build(kind, tables.data, kind).value


def print_risks(family: EnvFamily) -> None:
    """Prints which protections of a world this machine does not give, a line each, before anything is played."""
    from sojourn.protocols import HasRisks
    from sojourn.rollout.world import worlds_of

    found = [risk for world in worlds_of(family) if isinstance(world, HasRisks) for risk in world.risks()]
    for risk in dict.fromkeys(found):
        print(f"note: {risk}", file=sys.stderr)


def print_unverified(recipe: Recipe) -> None:
    """Prints which methods of a recipe were made without reading their source, a line each."""
    from sojourn import method_docs

    for sentence in dict.fromkeys(method_docs.unverified(recipe)):
        print(f"note: {sentence}", file=sys.stderr)
