"""The command `sojourn`: the table of its subcommands, and what becomes of their errors."""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from sojourn import event_loop
from sojourn.errors import ConfigError, SojournError, leaf, raised_at, told
from sojourn.secrets import masked
from sojourn.terminal.clean import clean
from sojourn.terminal.output import MAX_CHARACTERS, install_clean_streams

TRACEBACK = "SOJOURN_TRACEBACK"  # in the environment: errors come with their whole traceback


class Commands(TyperGroup):
    """The subcommands; what is told of arguments that cannot be used spells out what a terminal would obey."""

    def make_context(self, *given: Any, **more: Any) -> Any:
        with _told_cleanly():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Any) -> Any:
        with _told_cleanly():
            return super().invoke(ctx)


@contextmanager
def _told_cleanly() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own
            error.message = clean(str(error.message))  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    help="Train LLM agents by online reinforcement learning, in the environments they act in.",
    no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, cls=Commands,
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
    """The entry point: one sentence and exit code 2 for whatever the user can mend, their own code included."""
    try:
        _run()
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        event_loop.exit(ended.code or 0)


def _run() -> None:
    sys.path.insert(0, str(Path.cwd()))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows another
    install_clean_streams()
    try:
        _check_arguments(sys.argv[1:])
        app()
    except KeyboardInterrupt:  # a second one, while the first is being obeyed
        sys.exit(130)
    except BaseException as error:
        _end(error)


def _check_arguments(arguments: list[str]) -> None:
    for number, argument in enumerate(arguments, start=1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"argument {number} is {argument!r}, which is not UTF-8: rename the file, or name a folder above it"
            ) from None


def _end(error: BaseException) -> None:
    """Tells of an error that the user can mend; raises one that they cannot, as it is a fault of Sojourn's."""
    found = leaf(error)
    if isinstance(found, SojournError | OSError):
        sentence = str(found)
    elif raised_at(found):
        sentence = f"your code raises {told(found)}: mend it there ({TRACEBACK}=1 shows the whole traceback)"
    else:
        raise error
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    print(f"sojourn: {clean(masked(sentence), MAX_CHARACTERS - 100)}", file=sys.stderr)
    sys.exit(2)
