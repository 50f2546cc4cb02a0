"""Writes the pages that are made of the code: the configuration, the command line, and the methods.

    python docs/reference.py

A test says when they are out of date.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from sojourn import config_docs, method_docs, threads
from sojourn.cli import TRACEBACK, app

DOCS = Path(__file__).parent
HEAD = f"""# Commands

Made by `make reference` from the commands themselves. A command that cannot do what was asked prints one sentence
and ends with the exit code 2; `{TRACEBACK}=1` prints the traceback too.
Ctrl-C ends a run with 130, and it can be resumed.

`sojourn --install-completion` teaches your shell (bash, zsh, fish or PowerShell) to complete commands and
options with the tab key, from the next shell on; `sojourn --show-completion` prints what it would install.
"""


def pages() -> dict[str, str]:
    """Returns the text of each page by its path below docs/."""
    threads.prepare()
    configuration = {f"configuration/{name}.md": text for name, text in config_docs.pages().items()}
    return {**configuration, "command-line.md": command_line(), "methods.md": method_docs.markdown()}


def command_line() -> str:
    group: Any = typer.main.get_command(app)
    sections = ("\n".join(_command(name, command)) for name, command in group.commands.items())
    return "\n".join([HEAD, *sections]).rstrip() + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    usage = [f"[{p.name}]" if not p.required else p.name.upper() for p in arguments]
    yield f"## sojourn {name}"
    yield ""
    yield f"`sojourn {' '.join([name, *usage])}`"
    yield ""
    yield " ".join((command.help or "").split())
    yield ""
    if shown:
        yield "| argument or option | what it is |"
        yield "|---|---|"
    for parameter in shown:
        label = parameter.name if parameter in arguments else ", ".join(parameter.opts + parameter.secondary_opts)
        text = " ".join((parameter.help or "").split()).replace("|", "\\|").replace("<", "\\<")
        yield f"| `{label}` | {text} |"
    yield ""


if __name__ == "__main__":
    for path, text in pages().items():
        (DOCS / path).parent.mkdir(exist_ok=True)
        (DOCS / path).write_text(text)
