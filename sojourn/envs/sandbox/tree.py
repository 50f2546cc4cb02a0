"""Files as facts: what lies in a sandbox, read from outside without ever following a link."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

LONGEST_AGO = 1_700_000_000.0  # the date of files that a world puts in: 14 November 2023


class LostError(Exception):
    """The agent has ruined its own sandbox: its failure, never the infrastructure's, and never rewarded."""


class Entry(NamedTuple):
    """One file, folder or symbolic link (then `data` is where it leads)."""

    kind: Literal["file", "folder", "link"] = "file"
    data: bytes = b""
    mode: int = 0o644
    mtime: float = LONGEST_AGO

    @classmethod
    def file(cls, text: str | bytes, mode: int = 0o644, mtime: float = LONGEST_AGO) -> Entry:
        return cls("file", text.encode() if isinstance(text, str) else text, mode, mtime)

    @classmethod
    def folder(cls, mode: int = 0o755) -> Entry:
        return cls("folder", b"", mode)


@dataclass(frozen=True)
class Tree:
    """The files of a sandbox by absolute path (`/task/a.txt`), parents before children."""

    entries: Mapping[str, Entry] = field(default_factory=dict)

    def data(self, path: str) -> bytes | None:
        """The bytes of a plain file; None for anything else, symbolic links included."""
        entry = self.entries.get(_absolute(path))
        return entry.data if entry and entry.kind == "file" else None

    def text(self, path: str) -> str | None:
        """The text of a plain file without its trailing space; None where there is none."""
        data = self.data(path)
        return None if data is None else data.decode(errors="replace").rstrip()

    def mode(self, path: str) -> int | None:
        entry = self.entries.get(_absolute(path))
        return entry.mode if entry else None

    def link(self, path: str) -> str | None:
        """Where a symbolic link leads."""
        entry = self.entries.get(_absolute(path))
        return os.fsdecode(entry.data) if entry and entry.kind == "link" else None

    def files(self, folder: str = ".") -> list[str]:
        """The plain files below a folder, by their paths from it, sorted."""
        start = _absolute(folder) + "/"
        return sorted(p[len(start) :] for p, e in self.entries.items() if p.startswith(start) and e.kind == "file")

    @property
    def digest(self) -> str:
        """Of names, contents and modes; when files were written does not count."""
        found = hashlib.sha256()
        for path, entry in sorted(self.entries.items()):
            head = f"{path!r} {entry.kind} {entry.mode:o} {len(entry.data)}\n"
            found.update(head.encode(errors="backslashreplace") + entry.data)
        return found.hexdigest()


def _absolute(path: str) -> str:
    return path if path.startswith("/") else "/task" if path == "." else f"/task/{path}"


@dataclass
class Reader:
    """Reads folders through open descriptors, never through a link; raises `LostError` beyond its limits."""

    files: int
    data_bytes: int
    entries: dict[str, Entry] = field(default_factory=dict)
    read: int = 0

    def folder(self, fd: int, path: str, depth: int = 0) -> None:
        if depth > 64:
            raise LostError("folders are nested more than 64 deep")
        for name in sorted(os.listdir(fd)):
            with suppress(PermissionError):  # see `_opened`
                self._one(fd, name, f"{path}/{name}", depth)

    def _one(self, fd: int, name: str, path: str, depth: int) -> None:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode)
        if len(self.entries) >= self.files:
            raise LostError(f"there are more than {self.files} files")
        if stat.S_ISLNK(found.st_mode):
            target = os.fsencode(os.readlink(name, dir_fd=fd))
            self.entries[path] = Entry("link", target, 0o777, found.st_mtime)
        elif stat.S_ISDIR(found.st_mode):
            self.entries[path] = Entry("folder", b"", mode, found.st_mtime)
            if (inner := _opened(name, fd, os.O_DIRECTORY)) is not None:
                try:
                    self.folder(inner, path, depth + 1)
                finally:
                    os.close(inner)
        elif stat.S_ISREG(found.st_mode) and (inner := _opened(name, fd, os.O_NONBLOCK)) is not None:
            with os.fdopen(inner, "rb") as file:
                data = file.read(self.data_bytes - self.read + 1)
            self.read += len(data)
            if self.read > self.data_bytes:
                raise LostError(f"the files are longer than {self.data_bytes} bytes in all")
            self.entries[path] = Entry("file", data, mode, found.st_mtime)


def _opened(name: str, folder: int, flag: int) -> int | None:
    """A descriptor; None where the agent has taken away its own right to read, which root does not notice: for an
    ordinary user such a file is not there, nor in a fork."""
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flag, dir_fd=folder)
    except PermissionError:
        return None
