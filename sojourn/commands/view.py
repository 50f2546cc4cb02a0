"""`sojourn view`: shows runs in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn import threads
from sojourn.errors import ConfigError, MissingExtraError


def view(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Run folders, or folders that hold runs. (default: runs)")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Any address but loopback requires a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The first port to try; 0 takes any free port.")] = 7864,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    play: Annotated[
        bool, typer.Option("--play", help="Allow to re-run episodes from any turn, by a person or a checkpoint.")
    ] = False,
    answer: Annotated[
        bool, typer.Option("--answer", help="Allow to answer what agents ask people (agent ask_person).")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="With --play: the folder in which re-runs are saved.")] = None,
) -> None:
    """Show runs in the browser: curves, groups, episodes and tokens. Pages of running runs update by themselves."""
    try:
        from sojourn.view.server import serve
    except ImportError as error:
        raise MissingExtraError(f"sojourn view needs more packages ({error}): pip install 'sojourn[view]'") from error
    if out is not None and not play:
        raise ConfigError("--out is the folder for re-runs, which need --play: add --play, or leave out --out")
    if play:
        threads.prepare()
    serve(folders or [Path("runs")], host=host, port=port, browser=browser, play=play, answer=answer, out=out)
