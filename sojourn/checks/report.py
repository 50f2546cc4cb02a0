"""Holds the verdicts of a conformance suite, one per promise, and shows them as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sojourn.terminal.clean import LIMIT, clean
from sojourn.terminal.output import CleanConsole
from sojourn.verdict import Outcome, Verdict

__all__ = ["Outcome", "Report", "Verdict"]


STYLES: Mapping[Outcome, str] = {
    Outcome.PASSED: "green",
    Outcome.WARNED: "yellow",
    Outcome.FAILED: "bold red",
    Outcome.NOT_OFFERED: "dim",
    Outcome.NOT_JUDGED: "dim",
}


@dataclass(frozen=True)
class Report:
    """The verdicts on one component."""

    subject: str
    verdicts: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        """Returns whether no promise is broken."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Returns the names of the broken promises."""
        return tuple(v.promise for v in self.verdicts if v.outcome is Outcome.FAILED)

    def __getitem__(self, promise: str) -> Verdict:
        return {verdict.promise: verdict for verdict in self.verdicts}[promise]

    def __rich__(self) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            title=Text(clean(self.subject, LIMIT)),
            caption="passed" if self.passed else f"{len(self.failed)} broken",
        )
        for heading in ("promise", "verdict", "detail"):
            table.add_column(heading, overflow="fold")
        for verdict in self.verdicts:
            outcome = Text(verdict.outcome, style=STYLES[verdict.outcome])
            table.add_row(Text(verdict.promise), outcome, Text(clean(verdict.detail, LIMIT)))
        return table

    def print(self, console: Console | None = None) -> None:
        (console or CleanConsole()).print(self)
