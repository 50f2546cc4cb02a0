"""Content-addressed files: images and other bytes that records name by digest."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from sojourn.errors import RecordError
from sojourn.record.atomic import write_bytes


@dataclass(frozen=True)
class Blobs:
    """A folder in which every file is named by the sha256 digest of what is in it."""

    folder: Path

    def put(self, data: bytes) -> str:
        """Keeps the bytes, once however often they are given, and returns their digest."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.path(digest)
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(path, data)
        return digest

    def get(self, digest: str) -> bytes:
        path = self.path(digest)
        if not path.exists():
            raise RecordError(f"blob {digest} is not in {self.folder}: copy the run's blobs folder with the run")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise RecordError(f"{path} does not hold what its name says: the file is damaged, restore it from a copy")
        return data

    def path(self, digest: str) -> Path:
        """Where the bytes of a digest lie; nothing but a digest is accepted, so no path leads out of the folder."""
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise RecordError(f"blob {digest!r} cannot be found: a blob is named by 64 hexadecimal digits")
        return self.folder / digest
