"""Content-addressed files: images and other bytes that records name by digest."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sojourn.errors import RecordError
from sojourn.files import read_bytes
from sojourn.record.atomic import write_bytes, writing

MAX_BLOB_BYTES = 1 << 30  # bytes of one blob


@dataclass(frozen=True)
class Blobs:
    """A folder in which every file is named by the sha256 digest of what is in it."""

    folder: Path

    def put(self, data: bytes) -> str:
        """Keeps the bytes, once however often they are given, and returns their digest."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.path(digest)
        if not path.exists():
            with writing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(path, data)
        return digest

    def keep(self, named: Mapping[str, bytes]) -> None:
        """Keeps what a world named; raises RecordError where a name is not the digest, as no record would find it."""
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
            raise RecordError(f"{path} does not hold what its name says: the file is damaged, restore it from a copy")
        return data

    def path(self, digest: str) -> Path:
        """Where the bytes of a digest lie; nothing but a digest is accepted, so no path leads out of the folder."""
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise RecordError(f"blob {digest!r} cannot be found: a blob is named by 64 hexadecimal digits")
        return self.folder / digest
