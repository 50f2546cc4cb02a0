"""`sojourn view`: runs in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.errors import MissingExtraError


def view(
    folders: Annotated[list[Path] | None, typer.Argument(help="runs, or folders of runs; by default runs/")] = None,
    host: Annotated[
        str, typer.Option(help="where to listen; elsewhere than on loopback it asks for a token")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="the first port to try; 0 for any")] = 7864,
    browser: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
) -> None:
    """Look at runs in the browser: curves, groups, episodes, tokens; it follows those that are running."""
    try:
        from sojourn.view.server import serve
    except ImportError as error:
        raise MissingExtraError(f"sojourn view needs a package more ({error}): pip install 'sojourn[view]'") from error
    serve(folders or [Path("runs")], host=host, port=port, browser=browser)
