"""Stores images and other bytes in files that are named by the digest of their content."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sojourn.errors import RecordError
from sojourn.files import read_bytes
from sojourn.record.atomic import write_bytes, writing

MAX_BLOB_BYTES = 1 << 30


@dataclass(frozen=True)
class Blobs:
    """A folder in which every file is named by the SHA-256 of its content."""

    folder: Path

    def put(self, data: bytes) -> str:
        """Stores the bytes, unless they are stored already, and returns their digest."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.path(digest)
        if not path.exists():
            with writing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(path, data)
        return digest

    def keep(self, named: Mapping[str, bytes]) -> None:
        """Stores the blobs of a world by their names; raises RecordError if a name is not the digest of its bytes."""
        for name, data in named.items():
            if not isinstance(data, bytes | bytearray | memoryview):
                raise RecordError(
                    f"the world gives a blob that is a {type(data).__name__}: the entries of `Env.blobs` are bytes"
                )
            digest = hashlib.sha256(data).hexdigest()
            if name != digest:
                raise RecordError(
                    f"the world names a blob of {len(data)} bytes {str(name)[:64]!r}, but its SHA-256 is {digest}: "
                    "name the entries of `Env.blobs`, and images in messages, by the SHA-256 of their bytes"
                )
            self.put(data)

    def get(self, digest: str) -> bytes:
        path = self.path(digest)
        if not path.exists():
            raise RecordError(f"blob {digest} is not in {self.folder}: copy the run's blobs folder with the run")
        try:
            data = read_bytes(path, MAX_BLOB_BYTES)
        except OSError as error:
            raise RecordError(f"{path} cannot be read ({error.strerror}): restore it from a copy") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise RecordError(f"the content of {path} has another digest: the file is damaged, restore it from a copy")
        return data

    def path(self, digest: str) -> Path:
        """Returns the path of a blob; only a digest is accepted, so that no path leads out of the folder."""
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise RecordError(f"blob {digest!r} cannot be found: a blob is named by 64 hexadecimal digits")
        return self.folder / digest
