"""`sojourn doctor`: says what this machine has, what each thing is for, and how to get it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from sojourn import threads
from sojourn.errors import ConfigError
from sojourn.terminal.output import CleanConsole

if TYPE_CHECKING:
    from rich.table import Table

    from sojourn.doctor import Finding


def doctor(
    needed: Annotated[
        list[str] | None,
        typer.Argument(help="Things that you need, such as browser or sandbox: the exit code is 1 if one is missing."),
    ] = None,
) -> None:
    """Show what this machine has, what each thing is for, and how to get what is missing. The exit code is 1 if
    training is not possible."""
    from sojourn.config.lookup import nearest
    from sojourn.doctor import examine

    threads.prepare()
    findings = examine()
    known = [finding.name for finding in findings]
    for name in needed or ():
        if name not in known:
            raise ConfigError(f"'{name}' is not looked for: {nearest(name, known)}")
    CleanConsole().print(_table(findings))
    wanted = set(needed or ())
    missing = [f.name for f in findings if not f.present and (f.required or f.name in wanted)]
    if missing:
        CleanConsole().print(f"missing: {', '.join(missing)}")
        raise typer.Exit(1)


def _table(findings: list[Finding]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table("", "", "what is here", "what it is for, and how to get it", box=box.SIMPLE_HEAD, show_edge=False)
    for finding in findings:
        mark = Text("yes", "green") if finding.present else Text("no", "bold red" if finding.required else "yellow")
        text = Text(finding.purpose)
        if finding.remedy:
            text.append(f"\n{finding.remedy}", "dim")
        table.add_row(Text(finding.name, "bold"), mark, Text(finding.found), text)
    return table
