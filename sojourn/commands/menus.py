"""`sojourn envs` and `sojourn methods`: the worlds and methods that are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from sojourn import threads
from sojourn.commands.arguments import Overrides, build_world
from sojourn.errors import ConfigError
from sojourn.terminal.output import CleanConsole

if TYPE_CHECKING:
    from rich.table import Table

    from sojourn.method_docs import Method


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
    which: Annotated[str, typer.Argument(help="a method, or a kind of them: estimator, loss, stream, ...")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="as the page of the documentation")] = False,
) -> None:
    """List the methods: where they come from, what they need and what they go with."""
    from sojourn import method_docs

    threads.prepare()
    if markdown:
        if which:
            raise ConfigError(f"--markdown is a page of all methods: leave out '{which}'")
        print(method_docs.markdown(), end="")
    elif which and which not in method_docs.KINDS:
        for method in method_docs.of_name(which):
            CleanConsole().print(_method_sheet(method))
    else:
        CleanConsole().print(_method_table(method_docs.methods(which)))


def _method_table(methods: list[Method]) -> Table:
    from rich.table import Table

    shown = Table("kind", "name", "what it is", "from", "needs", "goes with", box=None, padding=(0, 1, 1, 0))
    for method in methods:
        cells = (method.what, method.origin, ", ".join(method.needs), method.composes)
        shown.add_row(method.kind, Text(method.name, "bold"), *cells)
    return shown


def _method_sheet(method: Method) -> Table:
    """All that a method's docstring says, after what the table says of it."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(method.kind, Text(method.name, "bold"))
    rows = {"from": "; ".join(method.sources), "unverified": method.unverified, "needs": ", ".join(method.needs)}
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in method.text.split("\n\n"))
    for label, value in {**rows, "goes with": method.composes, "": f"\n{text}\n"}.items():
        if value:
            grid.add_row(label, Text(value))
    return grid
