"""`sojourn runs`: lists and compares runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.errors import ConfigError
from sojourn.terminal.output import CleanConsole


def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Run folders, or folders that hold runs. (default: runs)")
    ] = None,
    name: Annotated[str, typer.Option(help="List only runs whose name contains this text.")] = "",
    tag: Annotated[str, typer.Option(help="List only runs with this tag (record.tags).")] = "",
    diff: Annotated[
        bool, typer.Option("--diff", help="Show where two runs differ: configs, seeds, models, packages.")
    ] = False,
    curve: Annotated[
        Path | None, typer.Option(help="Draw the curves of the runs to this PNG, seeds of a recipe in one colour.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List runs with their state, their step, their success rate, and the results of their evaluations."""
    from sojourn.terminal import runs as lists

    console = CleanConsole()
    if curve is not None and (diff or json):
        raise ConfigError(f"--curve draws, and --{'diff' if diff else 'json'} prints: leave one of them out")
    if diff and (name or tag):
        raise ConfigError("--diff compares the two runs that are named: leave out --name and --tag")
    if curve is not None:
        return _draw(folders or [], curve, name, tag)
    if diff:
        return _differ(folders or [], json, console)
    listed = lists.find_runs(folders or [Path("runs")], name, tag)
    if json:
        print(lists.as_json(listed))
    elif listed:
        console.print(lists.table(listed, console.width))
    else:
        where = ", ".join(map(str, folders or ["runs"]))
        console.print(lists.none_found(where, folders or [Path("runs")], name, tag), soft_wrap=True, markup=False)


def _differ(folders: list[Path], json: bool, console: CleanConsole) -> None:
    import json as format

    from sojourn.terminal import runs as lists

    if len(folders) != 2:
        raise ConfigError("--diff compares two runs: name exactly two, such as sojourn runs runs/a runs/b --diff")
    if json:
        print(format.dumps([difference._asdict() for difference in lists.differences(*folders)], indent=1))
    else:
        console.print(lists.difference_table(*folders))


def _draw(folders: list[Path], out: Path, name: str, tag: str) -> None:
    from sojourn import plot_recipes
    from sojourn.terminal import runs as lists

    if not folders:
        raise ConfigError("--curve needs the run folders to draw: sojourn runs runs/a runs/b --curve curve.png")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--curve {out}: there is no folder '{out.parent}': create it first")
    if name or tag:
        drawn = [run.path for run in lists.find_runs(folders, name, tag)]
        if not drawn:
            raise ConfigError(lists.none_found(", ".join(map(str, folders)), folders, name, tag))
    else:
        drawn = [path for folder in folders if not folder.is_file() for path in _runs_in(folder)]
    plot_recipes.draw(drawn, out)
    print(f"drawn: {out}")


def _runs_in(folder: Path) -> list[Path]:
    """Returns the runs in a folder, or the folder itself where it is a run, or neither, which is told by whoever reads
    it. Files, such as the logs of a sweep, were left out before."""
    from sojourn.record.run_status import run_folders

    return (folder.is_dir() and sorted(run_folders([folder]))) or [folder]
