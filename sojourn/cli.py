"""The command `sojourn`: the table of its subcommands, and what becomes of their errors."""

from __future__ import annotations

import importlib
import io
import sys
from pathlib import Path

import typer

from sojourn.errors import SojournError, leaf

app = typer.Typer(
    help="Train LLM agents by online reinforcement learning, in the environments they act in.",
    no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
)  # fmt: skip

COMMANDS = {
    "train": "sojourn.commands.train:train",
    "eval": "sojourn.commands.evaluate:evaluate",
    "runs": "sojourn.commands.runs:runs",
    "show": "sojourn.commands.show:show",
    "view": "sojourn.commands.view:view",
    "report": "sojourn.commands.report:report",
    "play": "sojourn.commands.play:play",
    "export": "sojourn.commands.records:export",
    "replay": "sojourn.commands.records:replay",
    "arena": "sojourn.commands.arena:arena",
    "check": "sojourn.commands.check:check",
    "envs": "sojourn.commands.menus:envs",
    "methods": "sojourn.commands.menus:methods",
}

for name, where in COMMANDS.items():
    module, _, function = where.partition(":")
    app.command(name)(getattr(importlib.import_module(module), function))


def main() -> None:
    """The entry point: one sentence and exit code 2 for whatever the user can mend."""
    sys.path.insert(0, str(Path.cwd()))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows another
    try:
        app()
    except (SojournError, OSError) as error:
        _fail(error)
    except KeyboardInterrupt:  # a second one, while the first is being obeyed
        sys.exit(130)
    except BaseExceptionGroup as group:
        found = leaf(group)
        if not isinstance(found, SojournError | OSError):
            raise
        _fail(found)


def _fail(error: BaseException) -> None:
    print(f"sojourn: {error}", file=sys.stderr)
    sys.exit(2)
