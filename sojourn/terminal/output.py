"""The way of every command to the terminal: a console and a stream that only Sojourn's own styles pass.

Texts of worlds, agents, files and errors pass both as text: markup stays as it was written, and what a terminal would
obey is spelled out (`clean.escaped`), whoever printed it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from sojourn.terminal.clean import clean, escaped

MAX_CHARACTERS = 10_000  # characters of one error, warning or line of a log
_FILE: Any = Console.file


class CleanConsole(Console):
    """A console that reads no markup in texts, and lets no escape sequence through but those of rich's own styles."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    @property
    def file(self) -> IO[str]:
        """The stream itself, also where a live display has put another in front of the one that cleans."""
        found = _FILE.__get__(self)
        while isinstance(found, CleanStream):
            found = found.rich_proxied_file
        return found

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        _FILE.__set__(self, new_file)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(clean(text, MAX_CHARACTERS), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control or text.isprintable() else Segment(escaped(text), style)


class CleanStream:
    """A stream for all that is printed without a console. A text beyond `limit` characters is cut (None: none is).

    Rich finds the stream itself under `rich_proxied_file`, as it would spell out rich's own styles otherwise.
    """

    def __init__(self, stream: TextIO, limit: int | None = None) -> None:
        self.rich_proxied_file = stream
        self.limit = limit

    def write(self, text: str) -> int:
        shown = text.replace("\r\n", "\n").replace("\r", "\n")  # a return alone would let a text overwrite its line
        if self.limit is not None and len(shown) > self.limit:
            shown = clean(shown, self.limit) + "\n" * shown.endswith("\n")
        self.rich_proxied_file.write("\t".join(map(escaped, shown.split("\t"))))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def install_clean_streams() -> None:
    """Lets nothing of this process past the cleaning; texts to the standard error are cut where they are too long."""
    for name, limit in (("stdout", None), ("stderr", MAX_CHARACTERS)):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, CleanStream):
            setattr(sys, name, cast(TextIO, CleanStream(stream, limit)))
