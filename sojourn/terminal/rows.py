"""Tables whose cells are never cut: columns that do not fit are left out, or the first one gets lines of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from sojourn.terminal.indented import Indented

GAP = "  "


@dataclass(frozen=True, kw_only=True)
class Column:
    """A heading with one cell per row. The column with the highest `drop_priority` is left out first (0: never)."""

    heading: str
    cells: Sequence[str]
    drop_priority: int = 0
    right: bool = False

    @property
    def width(self) -> int:
        return max(map(cell_len, (self.heading, *self.cells)))

    @property
    def empty(self) -> bool:
        return not any(self.cells)

    def padded(self, text: str, width: int) -> str:
        space = " " * (width - cell_len(text))
        return space + text if self.right else text + space


def fit_columns(columns: Sequence[Column], width: int) -> list[Column]:
    """Returns the columns that fit side by side, without empty ones that may be left out."""
    kept = [column for column in columns if not (column.empty and column.drop_priority)]
    while total_width(kept) > width and any(column.drop_priority for column in kept):
        kept.remove(max(kept, key=lambda column: column.drop_priority))
    return kept


def rows(
    columns: Sequence[Column], width: int, notes: Sequence[Text] = (), styles: Sequence[str] = ()
) -> Iterator[RenderableType]:
    """Yields a line of headings, and one line for each row with its note below it.

    If even the columns that must stay are too wide, the first is put on a line of its own above the others.
    """
    kept = fit_columns(columns, width)
    first_apart = total_width(kept) > width
    headings = [column.heading for column in kept]
    yield from _row(kept, headings, first_apart, "dim")
    for number in range(len(kept[0].cells)):
        yield from _row(kept, [column.cells[number] for column in kept], first_apart, styles[number] if styles else "")
        if notes and notes[number]:
            yield Indented(notes[number], 4)


def _row(columns: Sequence[Column], cells: Sequence[str], first_apart: bool, style: str) -> Iterator[Text]:
    text = Text(style=style)
    for number, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        if first_apart and number == 0:
            yield Text(cell, style=style)
            text.append("   ")
            continue
        text.append(column.padded(cell, column.width))
        text.append(GAP)
    text.rstrip()
    yield text


def total_width(columns: Sequence[Column]) -> int:
    """Returns how many characters wide the columns are side by side."""
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)
