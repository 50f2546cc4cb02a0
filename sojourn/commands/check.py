"""`sojourn check`: runs the conformance suite of a component."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sojourn.commands.arguments import Overrides, build_component, build_world, is_file, print_risks
from sojourn.errors import ConfigError
from sojourn.terminal.output import CleanConsole

if TYPE_CHECKING:
    from sojourn.checks.report import Report


SUITES = {
    "env": "sojourn.checks.env:check_env",
    "agent": "sojourn.checks.agent:check_agent",
    "renderer": "sojourn.checks.renderer:check_renderer",
    "groups": "sojourn.checks.source:check_source",
    "reward": "sojourn.checks.reward:check_reward",
    "filter": "sojourn.checks.filter:check_filter",
    "curriculum": "sojourn.checks.curriculum:check_curriculum",
    "proposer": "sojourn.checks.proposer:check_proposer",
    "branching": "sojourn.checks.branching:check_branching",
    "stream": "sojourn.checks.stream:check_stream",
    "estimator": "sojourn.checks.estimator:check_estimator",
    "loss": "sojourn.checks.loss:check_loss",
    "schedule": "sojourn.checks.schedule:check_schedule",
    "sink": "sojourn.checks.sink:check_sink",
    "backend": "sojourn.checks.backend:check_backend",
}


def check(
    name: Annotated[
        str,
        typer.Argument(help="The component: a registered name, 'module:Class', or a recipe, whose world is checked."),
    ],
    overrides: Overrides = None,
    kind: Annotated[
        str,
        typer.Option(help=f"The kind of the component: {', '.join(SUITES)}. (default: the kind of the name)"),
    ] = "",
    episodes: Annotated[
        int | None,
        typer.Option(min=1, help="The number of tasks on which each check of a world is tried. (default: 4)"),
    ] = None,
    model: Annotated[
        str,
        typer.Option(help="The model for whose tokenizer a renderer is checked. (default: tiny)"),
    ] = "",
    attack: Annotated[
        bool,
        typer.Option(
            "--attack",
            help="Attack a world instead: try whether an agent can change its reward, or make its episode fail.",
        ),
    ] = False,
) -> None:
    """Run the conformance suite of a component: of a world, a reward, an estimator and others. The exit code is 1 if a
    check fails."""
    found = kind or _kind_of(name)
    if model and found != "renderer":
        raise ConfigError(f"--model {model}: only a renderer has a tokenizer, and '{name}' is to be checked as {found}")
    report = _attacked(found, name, overrides, episodes) if attack else _report(found, name, overrides, episodes, model)
    report.print(CleanConsole())
    if not report.passed:
        raise typer.Exit(1)


def _kind_of(name: str) -> str:
    """Returns the kind of a name. A recipe stands for its world; the kind of one's own class follows from its
    members."""
    from sojourn.config.lookup import find, is_registered, names, nearest

    kinds = [kind for kind in SUITES if is_registered(kind, name)]
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        raise ConfigError(f"'{name}' is the name of several components: add --kind {' or --kind '.join(kinds)}")
    if ":" in name:
        return _kind_of_class(find("env", name))
    if is_file(name):
        return "env"
    known = {name for kind in SUITES for name in names(kind)}
    raise ConfigError(f"unknown component '{name}': {nearest(name, known)} (or your own 'module:Class')")


def _kind_of_class(cls: Any) -> str:
    """Returns the kind of a class, which follows from what its calls and its `bind` or `open` take; where nothing
    does, it is a world."""
    if hasattr(cls, "needs") and callable(cls):
        return "loss" if "batch" in _takes(cls.__call__) else "estimator"
    if hasattr(cls, "seat"):
        return "agent"
    if hasattr(cls, "propose"):
        return "proposer"
    if hasattr(cls, "leaves") and "point" in _takes(cls.__call__):
        return "branching"
    if hasattr(cls, "bind") and {"tasks", "seed"} <= _takes(cls.bind):
        return "curriculum"
    if hasattr(cls, "bind") and {"context", "stage"} <= _takes(cls.bind):
        return "groups"
    if hasattr(cls, "bind") and "tokenizer" in _takes(cls.bind):
        return "renderer"
    if hasattr(cls, "bind") and {"folder", "config"} <= _takes(cls.bind):
        return "sink"
    if hasattr(cls, "provides") and "context" in _takes(cls.__call__):
        return "stream"
    if {"step", "steps"} <= _takes(cls.__call__):
        return "schedule"
    if "group" in _takes(cls.__call__):
        return "filter" if "scores" in _takes(cls.__call__) else "reward"
    return "backend" if hasattr(cls, "open") and "renderer" in _takes(cls.open) else "env"


def _takes(method: Any) -> set[str]:
    """Returns the names of a method's parameters."""
    import inspect

    return set(inspect.signature(method).parameters)


def _attacked(kind: str, name: str, overrides: list[str] | None, episodes: int | None) -> Report:
    from sojourn import event_loop
    from sojourn.checks.attack import attack_env

    if kind != "env":
        raise ConfigError(f"--attack: only a world is attacked, and '{name}' is to be checked as {kind}")
    if episodes is not None:
        raise ConfigError(f"--episodes {episodes}: attacks choose their tasks themselves; leave it out with --attack")
    world = build_world(name, overrides)
    print_risks(world)
    return event_loop.run(attack_env(world)).report


def _print_tools(world: Any) -> None:
    """Prints what a plain class offers as tools, as a helper that was meant to be none shows there."""
    from sojourn import env_catalog
    from sojourn.envs.tools import Tools

    for line in env_catalog.tools_of(world) if isinstance(world, Tools) else ():
        CleanConsole().print(Text(f"a tool: {line}", "dim"), soft_wrap=True)


def _report(kind: str, name: str, overrides: list[str] | None, episodes: int | None, model: str) -> Report:
    import importlib
    import inspect

    from sojourn import event_loop

    if kind not in SUITES:
        raise ConfigError(f"--kind {kind}: use one of {', '.join(SUITES)}")
    if episodes is not None and kind != "env":
        raise ConfigError(f"--episodes {episodes}: only a world is played, and '{name}' is to be checked as {kind}")
    component = build_world(name, overrides) if kind == "env" else build_component(kind, name, overrides)
    if kind == "env":
        print_risks(component)
        _print_tools(component)
    module, _, suite = SUITES[kind].partition(":")
    options: dict[str, Any] = {"episodes": 4 if episodes is None else episodes} if kind == "env" else {}
    if kind == "renderer":
        from sojourn.backends.torch.models import loading

        options["tokenizer"] = loading.tokenizer(model or "tiny")
    found = getattr(importlib.import_module(module), suite)(component, **options)
    return event_loop.run(found) if inspect.iscoroutine(found) else found
