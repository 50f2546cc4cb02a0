"""`sojourn runs`: what has been trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sojourn.errors import ConfigError


def runs(
    folders: Annotated[list[Path] | None, typer.Argument(help="runs, or folders of runs; by default runs/")] = None,
    curve: Annotated[Path | None, typer.Option(help="draw the run folders, seeds of one recipe, to this PNG")] = None,
    episodes: Annotated[bool, typer.Option("--episodes", help="list the newest episodes of a run")] = False,
    stage: Annotated[str, typer.Option(help="of which stage, by default the last that was trained")] = "",
    episode: Annotated[str, typer.Option(help="read this episode of a run")] = "",
) -> None:
    """List runs: their evaluations, steps and episodes; read an episode; or draw a learning curve."""
    from sojourn.record import listing

    if curve is not None:
        _draw(folders or [], curve)
    elif not (episodes or stage or episode):
        Console().print(listing.runs(folders or [Path("runs")]))
    elif folders is None or len(folders) != 1:
        raise ConfigError("--episodes, --stage and --episode read one run: sojourn runs runs/a --episodes")
    else:
        Console().print(listing.transcript(folders[0], episode) if episode else listing.episodes(folders[0], stage))


def _draw(folders: list[Path], out: Path) -> None:
    from sojourn.record import plot

    if not folders:
        raise ConfigError("--curve needs the run folders to draw: sojourn runs runs/a runs/b --curve curve.png")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--curve {out}: there is no folder '{out.parent}': make it first")
    plot.curve(folders, out)
    print(f"drawn: {out}")
