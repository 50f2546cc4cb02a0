"""A wrapped and indented text for rich, without trailing spaces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text


@dataclass(frozen=True)
class Indented:
    """A text that is indented by `by` columns, continuation lines included."""

    text: Text
    by: int = 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        for wrapped in self.text.wrap(console, max(options.max_width - self.by, 10)):
            wrapped.rstrip()
            yield Text(" " * self.by).append_text(wrapped)
