"""Reading files that anyone may have put there: regular files alone, and whole ones only up to a size.

A named pipe would be waited for without end, and a device read without end, where a run folder holds one in the place
of a file. All errors are OSErrors, which those who read turn into their own sentence.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

GIVEN = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
MAX_BYTES = 1 << 26  # bytes that are read at once


def require_regular(path: Path) -> None:
    """Raises OSError where there is something else than a file, for readers that open by name themselves."""
    try:
        _check(os.stat(path).st_mode, path)
    except FileNotFoundError:
        return


def descriptor(path: Path, flags: int = os.O_RDONLY) -> int:
    """An open file descriptor; whatever else lies there is refused without waiting for it."""
    found = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        _check(os.fstat(found).st_mode, path)
    except OSError:
        os.close(found)
        raise
    return found


def open_regular(path: Path) -> BinaryIO:
    """The file to read; what the process was given open, such as the `<(...)` of a shell, may be a pipe."""
    if str(path).startswith(GIVEN):
        return path.open("rb")
    return os.fdopen(descriptor(path), "rb")


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """All that a file holds; OSError where that is more than `most` bytes."""
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
