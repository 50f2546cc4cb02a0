"""Reads files that anyone may have put into a folder: only regular files, and only up to a size.

A named pipe under the name of a file would block its reader for ever, and a device might never end. All errors are
OSErrors, which the callers turn into sentences of their own.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

GIVEN = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # what the process was given open
MAX_BYTES = 1 << 26  # that are read at once


def require_regular(path: Path) -> None:
    """Raises OSError if `path` is something else than a regular file; for libraries that open it by its name."""
    try:
        _check(os.stat(path).st_mode, path)
    except FileNotFoundError:
        return


def descriptor(path: Path, flags: int = os.O_RDONLY) -> int:
    """Opens a regular file and returns its descriptor; anything else is refused at once."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        _check(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file to read; what the process was given open, such as a shell's `<(...)`, may be a pipe."""
    if str(path).startswith(GIVEN):
        return path.open("rb")
    return os.fdopen(descriptor(path), "rb")


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Returns the content of a file; raises OSError if it is larger than `max_bytes`."""
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it holds more than {max_bytes:,} bytes", str(path))
    return data


def read_text(path: Path, max_bytes: int = MAX_BYTES, encoding: str = "utf-8") -> str:
    return read_bytes(path, max_bytes).decode(encoding)


def _check(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
        raise OSError(errno.EINVAL, f"it is {kinds.get(stat.S_IFMT(mode), 'a device')}, not a file", str(path))
