"""Keeps two services from serving one run: both would decide on its releases."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from sojourn.errors import RecordError
from sojourn.files import descriptor as open_descriptor

FILE = "service.lock"


@dataclass
class ServiceLock:
    """A lock in the folder of a service's store, which the system releases however the process ends."""

    folder: Path
    _held: int | None = None

    def take(self) -> None:
        """Takes the lock, unless it is held here or the folder is not there yet. Raises `RecordError` where another
        service has it."""
        if self._held is not None or not self.folder.is_dir():
            return
        descriptor = open_descriptor(self.folder / FILE, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise RecordError(
                f"{self.folder} is the store of another service, which runs: expected one service of a run: use that "
                "one, or end it first"
            ) from None
        self._held = descriptor

    @property
    def is_taken(self) -> bool:
        """Returns whether a service has the lock."""
        try:
            self.take()
        except RecordError:
            return True
        self.close()
        return False

    def close(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None
