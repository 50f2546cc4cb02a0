"""`sojourn report`: a run in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.errors import ConfigError, MissingExtraError


def report(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    out: Annotated[Path, typer.Option(help="the file to write")] = Path("report.html"),
    episode: Annotated[list[str] | None, typer.Option(help="an episode to put in; several, if given again")] = None,
    smooth: Annotated[float, typer.Option(min=0, help="deviation of the smoothing, in steps")] = 0.0,
    force: Annotated[bool, typer.Option("--force", help="replace the file, where there is one")] = False,
) -> None:
    """Write a run's curves, tables and some episodes to one HTML file that needs no network."""
    try:
        from sojourn.view.report import write_report
    except ImportError as error:
        raise MissingExtraError(
            f"sojourn report needs a package more ({error}): pip install 'sojourn[view]'"
        ) from error
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder '{out.parent}': make it first")
    if out.exists() and not force:
        raise ConfigError(f"--out {out} is there already: give another name, or --force to replace it")
    episodes = write_report(run, out, episode or (), smooth)
    print(f"written: {out}, {out.stat().st_size / 1000:,.0f} kB, {episodes} episodes")
