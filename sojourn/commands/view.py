"""`sojourn view`: runs in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn import threads
from sojourn.errors import ConfigError, MissingExtraError


def view(
    folders: Annotated[list[Path] | None, typer.Argument(help="runs, or folders of runs; by default runs/")] = None,
    host: Annotated[
        str, typer.Option(help="where to listen; elsewhere than on loopback it asks for a token")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="the first port to try; 0 for any")] = 7864,
    browser: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
    play: Annotated[
        bool, typer.Option("--play", help="let its pages play episodes again, by a person or a checkpoint")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="with --play: the folder for what is kept of it")] = None,
) -> None:
    """Look at runs in the browser: curves, groups, episodes, tokens; it follows those that are running."""
    try:
        from sojourn.view.server import serve
    except ImportError as error:
        raise MissingExtraError(f"sojourn view needs a package more ({error}): pip install 'sojourn[view]'") from error
    if out is not None and not play:
        raise ConfigError("--out is for what --play makes: add --play, or leave it out")
    if play:
        threads.prepare()
    serve(folders or [Path("runs")], host=host, port=port, browser=browser, play=play, out=out)
