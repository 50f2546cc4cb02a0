"""`sojourn report`: writes a run to one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.errors import ConfigError, MissingExtraError


def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    episode: Annotated[
        list[str] | None, typer.Option(help="An episode to include; repeat the option for several.")
    ] = None,
    smooth: Annotated[
        float, typer.Option(min=0, help="The standard deviation of the curves' smoothing, in steps.")
    ] = 0.0,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write the curves, the tables and some episodes of a run to one HTML file that works without a network."""
    try:
        from sojourn.view.report import write_report
    except ImportError as error:
        raise MissingExtraError(f"sojourn report needs more packages ({error}): pip install 'sojourn[view]'") from error
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder '{out.parent}': create it first")
    if out.exists() and not force:
        raise ConfigError(f"--out {out}: this file exists: give another name, or replace it with --force")
    episodes = write_report(run, out, episode or (), smooth)
    print(f"written: {out}, {out.stat().st_size / 1000:,.0f} kB, {episodes} episodes")
