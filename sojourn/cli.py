"""The command `sojourn`: the table of its subcommands, and the handling of their errors."""

from __future__ import annotations

import gc
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from sojourn.errors import ConfigError, SojournError, describe_error, leaf, raised_at
from sojourn.secrets import masked
from sojourn.terminal.clean import clean
from sojourn.terminal.output import MAX_CHARACTERS, install_clean_streams

TRACEBACK = "SOJOURN_TRACEBACK"  # an environment variable: errors are printed with their traceback


class Commands(TyperGroup):
    """The subcommands. Messages about wrong arguments are cleaned before they are printed."""

    def make_context(self, *given: Any, **more: Any) -> Any:
        with _cleaned_messages():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Any) -> Any:
        with _cleaned_messages():
            return super().invoke(ctx)


@contextmanager
def _cleaned_messages() -> Iterator[None]:
    """Makes the messages of typer's own errors safe to print."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own
            error.message = clean(str(error.message))  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    help="Train LLM agents by online reinforcement learning, in the environments they act in.",
    no_args_is_help=True, pretty_exceptions_enable=False, add_completion=True, cls=Commands,
)  # fmt: skip

COMMANDS = {
    "init": "sojourn.commands.init:init",
    "train": "sojourn.commands.train:train",
    "sweep": "sojourn.commands.sweep:sweep",
    "eval": "sojourn.commands.evaluate:evaluate",
    "ope": "sojourn.commands.ope:ope",
    "steer": "sojourn.commands.steer:steer",
    "runs": "sojourn.commands.runs:runs",
    "show": "sojourn.commands.show:show",
    "view": "sojourn.commands.view:view",
    "report": "sojourn.commands.report:report",
    "serve": "sojourn.commands.serve:serve",
    "live": "sojourn.commands.live:live",
    "play": "sojourn.commands.play:play",
    "answer": "sojourn.commands.answer:answer",
    "export": "sojourn.commands.records:export",
    "replay": "sojourn.commands.records:replay",
    "arena": "sojourn.commands.arena:arena",
    "league": "sojourn.commands.league:league",
    "check": "sojourn.commands.check:check",
    "envs": "sojourn.commands.catalogs:envs",
    "methods": "sojourn.commands.catalogs:methods",
    "doctor": "sojourn.commands.doctor:doctor",
}

for name, where in COMMANDS.items():
    module, _, function = where.partition(":")
    app.command(name)(getattr(importlib.import_module(module), function))


def main() -> None:
    """Runs the command line. An error that the user can fix prints one sentence, and the exit code is 2."""
    try:
        _run()
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        if ended.code == 130:  # another interrupt would be a traceback of what libraries clean up
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.freeze()  # else Python looks for garbage in all that the libraries made, for over a second, only to end
        if "sojourn.event_loop" in sys.modules:  # else nothing can have been left running, and asyncio is not imported
            from sojourn import event_loop

            event_loop.exit(ended.code or 0)
        sys.exit(ended.code or 0)


def _run() -> None:
    sys.path.insert(0, str(Path.cwd()))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal cannot show is replaced
    install_clean_streams()
    try:
        _check_arguments(sys.argv[1:])
        app()
    except KeyboardInterrupt:  # a second one, while the first is being handled
        sys.exit(130)
    except BaseException as error:
        _end(error)


def _check_arguments(arguments: list[str]) -> None:
    """Raises ConfigError for an argument that is not UTF-8."""
    for number, argument in enumerate(arguments, start=1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"argument {number} is {argument!r}, which is not UTF-8: rename the file, or name a parent folder"
            ) from None


def _end(error: BaseException) -> None:
    """Prints an error that the user can fix, and exits; raises any other, which is a bug in Sojourn."""
    first_error = leaf(error)
    if isinstance(first_error, OSError) and first_error.filename is not None and first_error.strerror:
        sentence = f"{first_error.filename}: {first_error.strerror}"
    elif isinstance(first_error, SojournError | OSError):
        sentence = str(first_error)
    elif raised_at(first_error):
        sentence = (
            f"your code raises {describe_error(first_error)}: correct it there ({TRACEBACK}=1 prints the traceback)"
        )
    else:
        raise error
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    print(f"sojourn: {clean(masked(sentence), MAX_CHARACTERS - 100)}", file=sys.stderr)
    sys.exit(2)
