"""`sojourn init`: writes a world, a recipe and a test to begin from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.errors import ConfigError
from sojourn.record.atomic import require_writable_folder
from sojourn.terminal.output import CleanConsole

STARTER = Path(__file__).parent.parent / "starter"
SUFFIX = ".txt"  # of the files as they are kept here, where they are no modules
NEXT = (
    ("sojourn check lamps:Lamps", "does the world keep its promises?"),
    ("sojourn train train.toml", "a small model learns in it, in less than a minute"),
    ("python -m pytest", "the tests of the world and the recipe (after `pip install pytest`)"),
)


def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write to; it is made where it is missing.")] = Path(),
) -> None:
    """Write a world, a recipe and a test to begin from."""
    files = {folder / source.name.removesuffix(SUFFIX): source for source in sorted(STARTER.iterdir())}
    if existing := [str(path) for path in files if path.exists()]:
        raise ConfigError(f"'{existing[0]}' exists already, and is not overwritten: name another folder")
    require_writable_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for path, source in files.items():
        path.write_text(source.read_text())
    console = CleanConsole()
    console.print(f"written: {', '.join(map(str, files))}", soft_wrap=True)
    if folder.resolve() != Path.cwd():
        console.print(f"  cd {folder}", soft_wrap=True)
    for command, purpose in NEXT:
        console.print(f"  {command:<28}# {purpose}", soft_wrap=True)
