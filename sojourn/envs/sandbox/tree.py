"""Files as facts: what lies in a sandbox, read from outside without ever following a link."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sojourn.errors import InfrastructureError

DEFAULT_MTIME = 1_700_000_000.0  # the date of files that a world puts in: 14 November 2023


class LostError(Exception):
    """The agent has ruined its own sandbox: its failure, never the infrastructure's, and never rewarded."""


class Entry(NamedTuple):
    """One file, folder or symbolic link (then `data` is where it leads)."""

    kind: Literal["file", "folder", "link"] = "file"
    data: bytes = b""
    mode: int = 0o644
    mtime: float = DEFAULT_MTIME

    @classmethod
    def file(cls, text: str | bytes, mode: int = 0o644, mtime: float = DEFAULT_MTIME) -> Entry:
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


OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # failures of reading that are no agent's doing


@dataclass
class Reader:
    """Reads folders through open descriptors, never through a link; raises `LostError` beyond its limits.

    Nothing may run meanwhile: what changes while it is read raises `LostError` too. What its owner may not read is read
    none the less, as root would: an ordinary user gives himself the right to it, and takes it away again.
    """

    files: int
    data_bytes: int
    entries: dict[str, Entry] = field(default_factory=dict)
    read: int = 0

    def all(self, folders: Mapping[str, int]) -> None:
        """Reads what lies in some open folders, by the paths that they are given."""
        try:
            for path, fd in folders.items():
                with _allowed(fd, stat.S_IMODE(os.fstat(fd).st_mode), 0o500):
                    self._folder(fd, path, 0)
        except OSError as error:
            if error.errno in OURS:
                raise InfrastructureError(f"the files of a sandbox could not be read: {error.strerror}") from None
            raise LostError(f"the files changed while they were read ({error.strerror})") from None

    def _folder(self, fd: int, path: str, depth: int) -> None:
        if depth > 64:
            raise LostError("folders are nested more than 64 deep")
        for name in sorted(os.listdir(fd)):
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
            with _opened(name, fd, mode, 0o500, os.O_DIRECTORY) as inner:
                self._folder(inner, path, depth + 1)
        elif stat.S_ISREG(found.st_mode):
            with _opened(name, fd, mode, 0o400, os.O_NONBLOCK) as inner, open(inner, "rb", closefd=False) as file:
                data = file.read(self.data_bytes - self.read + 1)
            self.read += len(data)
            if self.read > self.data_bytes:
                raise LostError(f"the files are longer than {self.data_bytes} bytes in all")
            self.entries[path] = Entry("file", data, mode, found.st_mtime)


@contextmanager
def _opened(name: str, folder: int, mode: int, needed: int, flag: int) -> Iterator[int]:
    """A descriptor of a file or folder to read, with the right to it for so long."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    with ExitStack() as stack:
        if mode & needed == needed or os.geteuid() == 0:
            fd = os.open(name, os.O_RDONLY | flag | flags, dir_fd=folder)
        else:
            place = os.open(name, os.O_PATH | flags, dir_fd=folder)
            stack.callback(os.close, place)
            stack.enter_context(_allowed(place, mode, needed))
            fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC | flag)
        stack.callback(os.close, fd)
        yield fd


@contextmanager
def _allowed(fd: int, mode: int, needed: int) -> Iterator[None]:
    """Gives the owner a right to a file that is open, and takes it away again; root has it anyway."""
    if mode & needed == needed or os.geteuid() == 0:
        yield
        return
    path = f"/proc/self/fd/{fd}"  # `fchmod` takes no descriptor that was opened with O_PATH
    os.chmod(path, mode | needed)
    try:
        yield
    finally:
        os.chmod(path, mode)
