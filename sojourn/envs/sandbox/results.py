"""What a sandbox may use, and what came of a command in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from sojourn.config.registry import Range


class End(StrEnum):
    """Why a command stopped."""

    ENDED = "ended"  # by itself
    ANSWERED = "answered"  # a cell: the session goes on
    TIMEOUT = "timeout"
    OUTPUT = "output"
    MEMORY = "memory"
    FILES = "files"
    DESCRIPTORS = "descriptors"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a sandbox may use; `disk_bytes` each for /task and /tmp, `memory_bytes` in all, `cpu_s` per process."""

    memory_bytes: Annotated[int, Range(2**26)] = 2**29
    disk_bytes: Annotated[int, Range(2**16)] = 2**25
    file_bytes: Annotated[int, Range(2**12)] = 2**24
    files: Annotated[int, Range(16)] = 4_000
    descriptors: Annotated[int, Range(64)] = 2_000  # open at once, of all processes
    processes: Annotated[int, Range(4)] = 64
    cpu_s: Annotated[int, Range(1)] = 60
    output_bytes: Annotated[int, Range(256)] = 2**16  # kept, of what is said
    flood_bytes: Annotated[int, Range(2**12)] = 2**24  # said, before it is stopped


@dataclass(frozen=True)
class Result:
    """What a command said (output and errors as they came, the middle left out where it is long) and how it ended."""

    output: str
    code: int
    end: End
    fresh: bool = False  # a cell: its session had just begun

    @property
    def note(self) -> str:
        """What a reader must know beside the output; empty for a command that ended well."""
        stopped = {
            End.TIMEOUT: "stopped: it took too long",
            End.OUTPUT: "stopped: it said too much",
            End.MEMORY: "stopped: it used too much memory",
            End.FILES: "stopped: it made too many files",
            End.DESCRIPTORS: "stopped: it opened too many files",
        }.get(self.end)
        return stopped or (f"exit code {self.code}" if self.code else "")


def format_result(result: Result, longest: int) -> str:
    """What a command said, as an agent reads it."""
    text = result.output.rstrip()
    if len(text) > longest:
        left_out = len(text) - longest
        text = f"{text[: longest // 2]}\n[... {left_out} characters left out ...]\n{text[-(longest // 2) :]}"
    note = f"[{result.note}]" if result.note else ""
    return "\n".join(part for part in (text, note) if part) or "(no output)"
