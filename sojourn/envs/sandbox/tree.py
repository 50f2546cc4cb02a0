"""Reads the files of a sandbox from outside, as values, without ever following a link."""

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

DEFAULT_MTIME = 1_700_000_000.0  # of files that a world writes: 14 November 2023


class LostError(Exception):
    """The agent has broken its own sandbox: a failure of the policy, not of the infrastructure, and never rewarded."""


class Entry(NamedTuple):
    """One file, folder or symbolic link; the `data` of a link is its target."""

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
        """Returns the bytes of a plain file; None for anything else, symbolic links included."""
        entry = self.entries.get(_absolute(path))
        return entry.data if entry and entry.kind == "file" else None

    def text(self, path: str) -> str | None:
        """Returns the text of a plain file without trailing white space; None where there is none."""
        data = self.data(path)
        return None if data is None else data.decode(errors="replace").rstrip()

    def mode(self, path: str) -> int | None:
        entry = self.entries.get(_absolute(path))
        return entry.mode if entry else None

    def link(self, path: str) -> str | None:
        """Returns the target of a symbolic link; None where there is none."""
        entry = self.entries.get(_absolute(path))
        return os.fsdecode(entry.data) if entry and entry.kind == "link" else None

    def files(self, folder: str = ".") -> list[str]:
        """Returns the sorted paths of the plain files below a folder, relative to it."""
        start = _absolute(folder) + "/"
        return sorted(p[len(start) :] for p, e in self.entries.items() if p.startswith(start) and e.kind == "file")

    @property
    def digest(self) -> str:
        """Returns a digest of names, contents and modes; modification times are left out."""
        digest = hashlib.sha256()
        for path, entry in sorted(self.entries.items()):
            head = f"{path!r} {entry.kind} {entry.mode:o} {len(entry.data)}\n"
            digest.update(head.encode(errors="backslashreplace") + entry.data)
        return digest.hexdigest()


def _absolute(path: str) -> str:
    return path if path.startswith("/") else "/task" if path == "." else f"/task/{path}"


MACHINE_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # the machine causes these, not the agent


@dataclass
class Reader:
    """Reads folders through open descriptors, never through a link; raises `LostError` beyond its limits.

    Nothing may run meanwhile: files that change while they are read raise `LostError` too. Files that their owner may
    not read are read as root would: an ordinary user adds the permission and removes it again.
    """

    files: int
    data_bytes: int
    entries: dict[str, Entry] = field(default_factory=dict)
    read: int = 0

    def all(self, folders: Mapping[str, int]) -> None:
        """Reads everything in some open folders, which are given by their paths."""
        try:
            for path, fd in folders.items():
                with _allowed(fd, stat.S_IMODE(os.fstat(fd).st_mode), 0o500):
                    self._folder(fd, path, 0)
        except OSError as error:
            if error.errno in MACHINE_ERRORS:
                raise InfrastructureError(f"the files of a sandbox could not be read: {error.strerror}") from None
            raise LostError(f"the files changed while they were read ({error.strerror})") from None

    def _folder(self, fd: int, path: str, depth: int) -> None:
        if depth > 64:
            raise LostError("folders are nested more than 64 deep")
        for name in sorted(os.listdir(fd)):
            self._entry(fd, name, f"{path}/{name}", depth)

    def _entry(self, fd: int, name: str, path: str, depth: int) -> None:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        mode = stat.S_IMODE(status.st_mode)
        if len(self.entries) >= self.files:
            raise LostError(f"there are more than {self.files} files")
        if stat.S_ISLNK(status.st_mode):
            target = os.fsencode(os.readlink(name, dir_fd=fd))
            self.entries[path] = Entry("link", target, 0o777, status.st_mtime)
        elif stat.S_ISDIR(status.st_mode):
            self.entries[path] = Entry("folder", b"", mode, status.st_mtime)
            with _opened(name, fd, mode, 0o500, os.O_DIRECTORY) as inner:
                self._folder(inner, path, depth + 1)
        elif stat.S_ISREG(status.st_mode):
            with _opened(name, fd, mode, 0o400, os.O_NONBLOCK) as inner, open(inner, "rb", closefd=False) as file:
                data = file.read(self.data_bytes - self.read + 1)
            self.read += len(data)
            if self.read > self.data_bytes:
                raise LostError(f"the files are longer than {self.data_bytes} bytes in all")
            self.entries[path] = Entry("file", data, mode, status.st_mtime)


@contextmanager
def _opened(name: str, folder: int, mode: int, needed: int, flag: int) -> Iterator[int]:
    """Yields a descriptor for reading a file or folder, which its owner may read as long as it is open."""
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
    """Gives the owner the `needed` permission on an open file for a while; root has it anyway."""
    if mode & needed == needed or os.geteuid() == 0:
        yield
        return
    path = f"/proc/self/fd/{fd}"  # `fchmod` takes no descriptor that was opened with O_PATH
    os.chmod(path, mode | needed)
    try:
        yield
    finally:
        os.chmod(path, mode)
