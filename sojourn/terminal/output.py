"""A console and a stream through which every command prints, so that no text can control the terminal.

Texts of environments, agents, files and errors are printed as plain text: rich's markup is not interpreted, and control
characters are spelled out (`clean.escaped`). Only rich's own styles produce escape sequences.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from sojourn.terminal.clean import clean, escaped

MAX_CHARACTERS = 10_000  # of one error, warning or line of a log
_FILE: Any = Console.file


class CleanConsole(Console):
    """A console that interprets no markup, and prints no escape sequences but those of rich's own styles."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    @property
    def file(self) -> IO[str]:
        """Returns the underlying stream, also while a live display has replaced `sys.stdout`."""
        stream = _FILE.__get__(self)
        while isinstance(stream, CleanStream):
            stream = stream.rich_proxied_file
        return stream

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
    """A stream that cleans all that is printed without a console. Texts are cut after `limit` characters (None: never).

    Rich finds the underlying stream under `rich_proxied_file`; otherwise its own styles would be spelled out.
    """

    def __init__(self, stream: TextIO, limit: int | None = None) -> None:
        self.rich_proxied_file = stream
        self.limit = limit

    def write(self, text: str) -> int:
        printed = text.replace("\r\n", "\n").replace("\r", "\n")  # a return alone would let a text overwrite its line
        if self.limit is not None and len(printed) > self.limit:
            printed = clean(printed, self.limit) + "\n" * printed.endswith("\n")
        self.rich_proxied_file.write("\t".join(map(escaped, printed.split("\t"))))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def install_clean_streams() -> None:
    """Replaces the process's standard output and error by clean streams; long texts on standard error are cut."""
    for name, limit in (("stdout", None), ("stderr", MAX_CHARACTERS)):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, CleanStream):
            setattr(sys, name, cast(TextIO, CleanStream(stream, limit)))
