"""`sojourn envs` and `sojourn methods`: the worlds and methods that are installed."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from sojourn import threads
from sojourn.commands.given import Overrides, build_world
from sojourn.errors import ConfigError
from sojourn.terminal.output import CleanConsole


def envs(
    name: Annotated[str, typer.Argument(help="one world, or your own 'module:Class'; by default all")] = "",
    overrides: Overrides = None,
    measure: Annotated[bool, typer.Option("--measure", help="play it on this machine, now")] = False,
) -> None:
    """The worlds that are installed: what they are, what they need, and what was measured of them."""
    from sojourn import env_catalog
    from sojourn.config.registry import find, names

    console = CleanConsole()
    if not name:
        if measure or overrides:
            raise ConfigError("name the world that is meant: sojourn envs toy --measure")
        return console.print(env_catalog.table(env_catalog.worlds(), console.width))
    known = name in names("env") and not (measure or overrides)  # its class says enough
    family = find("env", name) if known else build_world(name, overrides)
    entry = env_catalog.describe(name, family)
    if measure:
        entry = env_catalog.measured_now(entry, family)
    console.print(env_catalog.sheet(entry, family))


def methods(
    kind: Annotated[str, typer.Argument(help="estimator, loss or stream; by default all")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="as the page of the documentation")] = False,
) -> None:
    """List the methods: where they come from, what they need and what they go with."""
    from rich.table import Table

    from sojourn import method_docs

    threads.prepare()
    if markdown:
        if kind:
            raise ConfigError(f"--markdown is a page of all methods: leave out '{kind}'")
        print(method_docs.markdown(), end="")
        return
    shown = Table("kind", "name", "what it is", "from", "needs", "goes with", box=None, padding=(0, 1, 1, 0))
    for method in method_docs.methods(kind):
        said = (method.what, "; ".join(method.sources), ", ".join(method.needs), method.composes)
        shown.add_row(method.kind, Text(method.name, "bold"), *said)
    CleanConsole().print(shown)
