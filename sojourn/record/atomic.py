"""Writes files so that they exist whole or not at all, even if the machine stops.

In a folder that only its owner may read, they get the same mode; elsewhere the umask decides.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sojourn.errors import RecordError

FOLDER_MODE, FILE_MODE = 0o700, 0o600  # only the owner may read


def private(folder: Path) -> bool:
    """Returns whether only its owner may read a folder."""
    return not folder.stat().st_mode & 0o077


def make_private(folder: Path) -> None:
    """Lets only its owner read a folder and everything in it."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(FOLDER_MODE if path.is_dir() else FILE_MODE)


def require_new_file(path: Path) -> None:
    """Raises RecordError where a new file cannot be made: something has this name, or its folder takes no file."""
    if path.exists():
        raise RecordError(f"{path} exists: give another name, or move the file away")
    require_place(path)


def require_place(path: Path) -> None:
    """Raises RecordError where a file cannot be written, as its folder is not there or takes no file."""
    if not (folder := path.absolute().parent).is_dir():
        raise RecordError(f"{path}: there is no folder '{path.parent}': make it first")
    if not os.access(folder, os.W_OK):
        raise RecordError(f"{path}: the folder '{path.parent}' takes no new file: allow writing there first")


def require_writable_folder(folder: Path) -> None:
    """Raises RecordError where nothing can be written in a folder, which need not exist yet."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise RecordError(f"{folder}: {existing} is no folder: give a folder, or the name of a new one")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RecordError(f"{folder}: nothing can be written in {existing}: name another, or allow writing there")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an error of the system that prevents writing `path` into a RecordError."""
    try:
        yield
    except Exception as error:
        # safetensors raises errors of the system as plain text
        if not isinstance(error, OSError) and "(os error " not in str(error):
            raise
        reason = getattr(error, "strerror", None) or error
        raise RecordError(
            f"{path} cannot be written ({reason}): its earlier content is unchanged; free space or allow writing "
            "there, then try again"
        ) from error


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Calls `write` with the path of a temporary file, and moves that to `path` once it is on the disk.

    Raises RecordError if the system refuses, with `path` unchanged. In a private folder the file is private.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        try:
            write(temporary)
            if private(path.parent):
                temporary.chmod(FILE_MODE)
            sync(temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    write_file(path, lambda temporary: temporary.write_bytes(data))


@contextmanager
def new_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yields an empty temporary folder, and moves it to `path` once the block has ended and all of it is on the disk.

    Nothing is left of it where the block raises. Where `path` has content, the system refuses, unless `path` is to be
    replaced: it is `.NAME.old` for a moment, and is removed. In a private folder the new one is private.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.new-", dir=path.parent) as around:
        temporary = Path(around, path.name)  # in a folder of its own, so that its mode is by the umask
        temporary.mkdir()
        yield temporary
        if private(path.parent):
            make_private(temporary)
        sync_tree(temporary)
        old = path.with_name(f".{path.name}.old")
        if replace and path.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(path, old)
        os.rename(temporary, path)
        sync(path.parent)
        if replace:
            shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Waits until a file, or the list of files of a folder, is on the disk."""
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
