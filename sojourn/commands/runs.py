"""`sojourn runs`: what has been trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.errors import ConfigError
from sojourn.terminal.output import CleanConsole


def runs(
    folders: Annotated[list[Path] | None, typer.Argument(help="runs, or folders of runs; by default runs/")] = None,
    name: Annotated[str, typer.Option(help="only runs with this text in their names")] = "",
    tag: Annotated[str, typer.Option(help="only runs with this tag (record.tags)")] = "",
    diff: Annotated[bool, typer.Option("--diff", help="where two runs differ: configs, seeds, packages")] = False,
    curve: Annotated[Path | None, typer.Option(help="draw the run folders, seeds of one recipe, to this PNG")] = None,
    json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """List runs: whether they run, how far they are, what their evaluations said."""
    from sojourn.terminal import runs as lists

    console = CleanConsole()
    if curve is not None:
        return _draw(folders or [], curve)
    if diff:
        return _differ(folders or [], json, console)
    found = lists.find_runs(folders or [Path("runs")], name, tag)
    if json:
        print(lists.as_json(found))
    elif found:
        console.print(lists.table(found, console.width))
    else:
        where = ", ".join(map(str, folders or ["runs"]))
        wanted = " of this name or tag" if name or tag else " yet: sojourn train recipes/toy/train.toml"
        console.print(f"no runs in '{where}'{wanted}", soft_wrap=True, markup=False)


def _differ(folders: list[Path], json: bool, console: CleanConsole) -> None:
    import json as format

    from sojourn.terminal import runs as lists

    if len(folders) != 2:
        raise ConfigError("--diff needs the two runs to compare: sojourn runs runs/a runs/b --diff")
    if json:
        print(format.dumps([difference._asdict() for difference in lists.differences(*folders)], indent=1))
    else:
        console.print(lists.difference_table(*folders))


def _draw(folders: list[Path], out: Path) -> None:
    from sojourn import plot

    if not folders:
        raise ConfigError("--curve needs the run folders to draw: sojourn runs runs/a runs/b --curve curve.png")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--curve {out}: there is no folder '{out.parent}': make it first")
    plot.curve(folders, out)
    print(f"drawn: {out}")
