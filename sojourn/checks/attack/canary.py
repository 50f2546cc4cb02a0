"""Sets up canaries, which no attack may touch, reach or read, whatever the world lets an agent do.

They are a folder that everybody may write to, a service on loopback, a socket with an abstract name, and a secret in
the environment. None of them belongs to the world, and no honest play uses them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

VARIABLE = "SOJOURN_CANARY"


@dataclass
class Canary:
    """The canaries: `open` makes them, `settle` records the state of this process, `broken` describes what an attack
    touched, `close` removes them."""

    secret: str = field(default_factory=lambda: secrets.token_hex(12))
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="canary-", dir="/tmp")))
    port: int = 0
    visits: int = 0
    before: dict[str, object] = field(default_factory=dict)
    _servers: list[asyncio.Server] = field(default_factory=list)

    @property
    def abstract(self) -> str:
        """Returns the name of the abstract socket, without its leading zero byte."""
        return f"canary-{self.secret}"

    async def open(self) -> Canary:
        self.folder.chmod(0o777)
        self.restore()
        os.environ[VARIABLE] = self.secret
        service = await asyncio.start_server(self._visited, "127.0.0.1", 0)
        self.port = service.sockets[0].getsockname()[1]
        self._servers.append(service)
        if sys.platform == "linux":  # where sockets have abstract names
            self._servers.append(await asyncio.start_unix_server(self._visited, "\0" + self.abstract))
        return self

    def restore(self) -> None:
        """Restores the file and forgets visits, so that each attack is blamed only for what it did."""
        for name in os.listdir(self.folder):
            (self.folder / name).unlink(missing_ok=True)
        file = self.folder / "canary"
        file.write_text("alive")
        file.chmod(0o666)
        self.visits = 0

    def settle(self) -> None:
        """Records the state of this process after honest plays, which may have made a library change it for good."""
        self.before = _process_state()

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        os.environ.pop(VARIABLE, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def broken(self) -> str:
        """Describes what was touched since the last call; empty where nothing was."""
        fault = self._touched_file() or self._reached_or_changed()
        if fault:
            self.restore()
            self.settle()
        return fault

    def _touched_file(self) -> str:
        with suppress(OSError):
            if (self.folder / "canary").read_text() == "alive" and os.listdir(self.folder) == ["canary"]:
                return ""
        return f"a file outside of the world was touched: {self.folder / 'canary'}"

    def _reached_or_changed(self) -> str:
        if self.visits:
            return f"a service on loopback that is not the world's was reached {self.visits} times"
        now = _process_state()
        changed = [name for name, value in self.before.items() if now[name] != value]
        return f"the {changed[0]} of this process changed" if changed else ""

    async def _visited(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        writer.close()


def _process_state() -> dict[str, object]:
    """Returns the state of the process that no play may change."""
    umask = os.umask(0o022)
    os.umask(umask)
    state: dict[str, object] = {"working directory": os.getcwd(), "file mode mask": umask}
    state["environment"] = dict(os.environ)
    handled: Callable[[int], object] = signal.getsignal
    state["signal handlers"] = {int(number): handled(number) for number in signal.valid_signals()}
    return state
