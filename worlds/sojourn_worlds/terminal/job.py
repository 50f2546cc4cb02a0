"""A job at the shell: files, an instruction, commands that do it, and how it is judged."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sojourn.envs.sandbox import Entry, Tree

LARGEST_ARCHIVE, MOST_MEMBERS = 2**22, 1_000  # bytes, unpacked; files, folders and all else
LARGEST_JSON = 2**20  # bytes
# fmt: off
NAMES = [
    "ada", "ben", "cleo", "dina", "emil", "fay", "gus", "hana", "ivo", "jana", "kim",
    "leo", "mara", "nils", "olga", "paul", "rosa", "sven", "tara", "uwe", "vera", "yann",
]
CITIES = ["berlin", "lima", "oslo", "paris", "quito", "rome", "tunis", "vienna"]
FRUITS = [
    "apple", "banana", "cherry", "fig", "grape", "kiwi",
    "lemon", "mango", "orange", "peach", "pear", "plum",
]
SERVICES = ["auth", "billing", "cache", "mail", "search", "store"]
WORDS = [
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "inlet",
    "jasper", "kelp", "lagoon", "meadow", "nectar", "opal", "pine", "quartz",
]
# fmt: on


@dataclass(frozen=True)
class Job:
    """A generated job. `solution` are bash commands that are said in /task, and which succeed again after any of them
    was said before; `check` reads the files alone, and returns True only when the job is done.
    """

    instruction: str
    files: Mapping[str, Entry]
    solution: tuple[str, ...]
    check: Callable[[Tree], bool]


Kind = Callable[[random.Random, int], Job]


def texts(files: Mapping[str, str | Iterable[str]]) -> dict[str, Entry]:
    """Returns entries of plain text files; a list of lines gets line ends."""
    return {
        path: Entry.file(text if isinstance(text, str) else "".join(f"{line}\n" for line in text))
        for path, text in files.items()
    }


def lines_are(path: str, expected: Iterable[object]) -> Callable[[Tree], bool]:
    """Returns a check that a file has these lines; spaces at their ends do not count."""
    wanted = [str(line) for line in expected]

    def check(tree: Tree) -> bool:
        text = tree.text(path)
        if text is None or text.count("\n") + 1 != len(wanted):  # millions of lines are not split
            return False
        return [line.rstrip() for line in text.split("\n")] == wanted

    return check


def files_are(expected: Mapping[str, str | bytes], folder: str = ".") -> Callable[[Tree], bool]:
    """Returns a check that the files below a folder are exactly these, with these contents."""
    wanted = {path: text.encode() if isinstance(text, str) else text for path, text in expected.items()}

    def check(tree: Tree) -> bool:
        return {path: tree.data(path if folder == "." else f"{folder}/{path}") for path in tree.files(folder)} == wanted

    return check


def unpack_archive(data: bytes | None) -> dict[str, bytes] | None:
    """Returns the files of a tar.gz; None where it is none, or has more members or bytes than an honest one would.

    A member's size is what it has when unpacked: of a sparse one, its archive holds almost nothing.
    """
    try:
        plain = zlib.decompressobj(wbits=31).decompress(data or b"", LARGEST_ARCHIVE)
        contents: dict[str, bytes] = {}
        left = LARGEST_ARCHIVE
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
            for number, member in enumerate(archive):
                left -= member.size
                if left < 0 or member.size < 0 or number >= MOST_MEMBERS:
                    return None
                if member.isreg() and (file := archive.extractfile(member)):
                    contents[member.name.removeprefix("./")] = file.read()
        return contents
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError, RecursionError):
        return None


def pack_archive(files: Mapping[str, str]) -> bytes:
    """Returns a tar.gz of the files, the same bytes whenever it is made."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mtime = len(text.encode()), 1_700_000_000
            archive.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(raw.getvalue(), mtime=0)


def parse_json(data: bytes | None) -> Any:
    """Returns the JSON in a file; None where there is none, or more than an honest one would have."""
    try:
        return json.loads(data or b"null") if len(data or b"") <= LARGEST_JSON else None
    except (ValueError, RecursionError):
        return None


def size(level: int) -> int:
    """Returns how many lines or rows a level has."""
    return (12, 40, 150)[level - 1]
