"""The limits of a sandbox, and the results of commands in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from sojourn.config.fields import Range


class End(StrEnum):
    """Says why a command stopped."""

    ENDED = "ended"  # the command ended by itself
    ANSWERED = "answered"  # a cell has ended; its session goes on
    TIMEOUT = "timeout"
    OUTPUT = "output"
    MEMORY = "memory"
    FILES = "files"
    DESCRIPTORS = "descriptors"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a sandbox: `disk_bytes` for /task and for /tmp, `memory_bytes` in total, `cpu_s` per process."""

    memory_bytes: Annotated[int, Range(2**26)] = 2**29
    disk_bytes: Annotated[int, Range(2**16)] = 2**25
    file_bytes: Annotated[int, Range(2**12)] = 2**24
    files: Annotated[int, Range(16)] = 4_000
    descriptors: Annotated[int, Range(64)] = 2_000  # open files of all processes together
    processes: Annotated[int, Range(4)] = 64
    cpu_s: Annotated[int, Range(1)] = 60
    output_bytes: Annotated[int, Range(256)] = 2**16  # of the output that is kept
    flood_bytes: Annotated[int, Range(2**12)] = 2**24  # of output, after which the command is stopped


@dataclass(frozen=True)
class Result:
    """The output of a command (standard output and errors in order, without its middle where it is long) and its
    end."""

    output: str
    code: int
    end: End
    fresh: bool = False  # the cell is the first of its session

    @property
    def note(self) -> str:
        """Returns how the command ended, for the reader of the output; empty for a command that ended well."""
        stopped = {
            End.TIMEOUT: "stopped: it took too long",
            End.OUTPUT: "stopped: it said too much",
            End.MEMORY: "stopped: it used too much memory",
            End.FILES: "stopped: it made too many files",
            End.DESCRIPTORS: "stopped: it opened too many files",
        }.get(self.end)
        return stopped or (f"exit code {self.code}" if self.code else "")


def format_result(result: Result, longest: int) -> str:
    """Returns the output and the end of a command as text for the agent, at most about `longest` characters."""
    text = result.output.rstrip()
    if len(text) > longest:
        left_out = len(text) - longest
        text = f"{text[: longest // 2]}\n[... {left_out} characters left out ...]\n{text[-(longest // 2) :]}"
    note = f"[{result.note}]" if result.note else ""
    return "\n".join(part for part in (text, note) if part) or "(no output)"
