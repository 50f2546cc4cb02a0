"""Files that are there whole or not at all, whenever the machine stops; in a folder that its owner alone may read,
they too are its owner's alone. Elsewhere the umask decides."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sojourn.errors import RecordError

FOLDER, FILE = 0o700, 0o600  # modes of what its owner alone may read


def private(folder: Path) -> bool:
    """Whether only its owner may look into a folder."""
    return not folder.stat().st_mode & 0o077


def make_private(folder: Path) -> None:
    """Lets only its owner read a folder and all that is in it."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(FOLDER if path.is_dir() else FILE)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Says in one sentence what the system has against writing `path`."""
    try:
        yield
    except Exception as error:
        # safetensors gives what the system said as text only
        if not isinstance(error, OSError) and "(os error " not in str(error):
            raise
        reason = getattr(error, "strerror", None) or error
        raise RecordError(
            f"{path} cannot be written ({reason}): what was there before is whole; make room or give leave to write "
            "there, then go on"
        ) from error


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` make a temporary file beside `path`, and moves it there once it is on the disk.

    Raises RecordError where the system refuses, with `path` as it was. In a private folder the file is private.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        try:
            write(temporary)
            if private(path.parent):
                temporary.chmod(FILE)
            sync(temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    write_file(path, lambda temporary: temporary.write_bytes(data))


def sync(path: Path) -> None:
    """Waits until a file, or the list of names of a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Waits until everything in a folder is on the disk."""
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink():
            sync(path)
