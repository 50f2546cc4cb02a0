"""`sojourn envs` and `sojourn methods`: list the worlds and the methods that are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from sojourn import threads
from sojourn.commands.arguments import Overrides, build_world
from sojourn.errors import ConfigError
from sojourn.terminal.output import CleanConsole

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from sojourn.method_docs import Method


WIDE = 110  # characters, from which a table of methods has all its columns


def envs(
    name: Annotated[
        str,
        typer.Argument(
            help="The world to describe: a name, or your own 'module:Class'. (default: a list of all worlds)"
        ),
    ] = "",
    overrides: Overrides = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Play the named world on this machine, and show what that measures: its speed and its rewards.",
        ),
    ] = False,
) -> None:
    """List the installed worlds: what each one is, what it needs, and what was measured of it."""
    from sojourn import env_catalog
    from sojourn.config.lookup import find, is_registered

    console = CleanConsole()
    if not name:
        if measure or overrides:
            raise ConfigError("name the world that is meant: sojourn envs toy --measure")
        return console.print(env_catalog.table(env_catalog.worlds(), console.width))
    known = is_registered("env", name) and not (measure or overrides)  # then its class is enough
    family = find("env", name) if known else build_world(name, overrides)
    entry = env_catalog.describe(name, family)
    if measure:
        entry = env_catalog.measured_now(entry, family)
    console.print(env_catalog.sheet(entry, family))


def methods(
    which: Annotated[
        str,
        typer.Argument(
            help="A method, or a kind of methods, such as estimator, loss or stream. (default: all of them)"
        ),
    ] = "",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print all methods as a page of the documentation, in Markdown.")
    ] = False,
) -> None:
    """List the methods: their sources, what they need, and what they can be combined with."""
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
        console = CleanConsole()
        console.print(_method_table(method_docs.methods(which), console.width))


def _method_table(methods: list[Method], width: int) -> RenderableType:
    """Returns the table of methods. On a narrow terminal, what they need and go with is left to the sheet of each."""
    from rich.console import Group
    from rich.table import Table

    wide = width >= WIDE
    shown = Table("kind", box=None, padding=(0, 1, 1, 0))
    shown.add_column("name", no_wrap=True)
    shown.add_column("what it is", overflow="fold")
    shown.add_column("from", overflow="fold", min_width=len("arXiv:2402.14740;"))
    for heading in ("needs", "goes with") if wide else ():
        shown.add_column(heading)
    for method in methods:
        cells = (method.summary, method.origin, *((", ".join(method.needs), method.goes_with) if wide else ()))
        shown.add_row(method.kind, Text(method.name, "bold"), *cells)
    return shown if wide else Group(shown, Text("what one needs and goes with: sojourn methods NAME", "dim"))


def _method_sheet(method: Method) -> Table:
    """Returns what the table has about a method, and then its whole docstring."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(method.kind, Text(method.name, "bold"))
    rows = {"from": "; ".join(method.sources), "unverified": method.unverified, "needs": ", ".join(method.needs)}
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in method.text.split("\n\n"))
    for label, value in {**rows, "goes with": method.goes_with, "": f"\n{text}\n"}.items():
        if value:
            grid.add_row(label, Text(value))
    return grid
