"""A Chromium of one episode alone, in a sandbox of its own, which an agent drives by the Chrome DevTools Protocol.

    browser = EpisodeBrowser(page="/s/name/", site="/path/to/the/socket/of/the/pages")
    await browser.open()
    browser.socket                # a Unix socket, where the browser answers as at its debugging port
    await browser.ended()         # how it ended, once it has
    await browser.close()

The protocol has no rights to give away: its `Browser` and `Target` domains reach all pages and contexts of a browser,
and its pages can read files. So nothing of it is filtered. Instead the whole browser is given to the agent, as a
sandbox (`sojourn/envs/sandbox/command.py`) holds nothing beside it: no network but the pages of the world, which a
small relay brings to `http://127.0.0.1:8000`; no files but /usr and fonts; no process of another episode. Whatever
decides the reward is outside, at the server of the pages. Everything ends with process 1 inside, and that with `close`
or with the process that opened it.

Chromium's own sandbox is off here: it would separate pages from the browser, and the agent has both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import tempfile
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from sojourn.envs.browser.asking import evaluate, get
from sojourn.envs.chromium import FLAGS, find_chromium
from sojourn.envs.sandbox.command import GROUP, PASSWD, memory_file, python, sandbox_command
from sojourn.errors import InfrastructureError

SITE_PORT, CDP_PORT, SITE = 8000, 9222, "/site"
ADDRESS = f"http://127.0.0.1:{SITE_PORT}"  # of the pages, as the browser reaches them
MORE_FLAGS = (
    *("--no-sandbox", "--disable-dev-shm-usage", "--disable-breakpad", "--no-proxy-server"),
    *("--user-data-dir=/tmp/profile", f"--remote-debugging-port={CDP_PORT}"),
)
SHOWN = ("/etc/fonts",)  # beside /usr, where they exist
MEMORY_BYTES, DISK_BYTES, PROCESSES = 2**31, 2**28, 2048  # of a browser; threads count as processes
INSIDE = Path(__file__).with_name("inside.py")
READY = "`${document.readyState} ${location.href}`"
START_S, PAUSE_S, ANSWER_S = 60.0, 0.05, 10.0
KEPT_BYTES, TOLD = 1 << 14, 300  # of what it printed: the bytes that are kept, the characters in a message


class BrowserEnd(Enum):
    """Says how a browser ended."""

    CLOSED = "its client closed it"
    BROKEN = "its client crashed it, or used more memory than it may"
    FAILED = "it failed"


ENDS = {0: BrowserEnd.CLOSED, 70: BrowserEnd.BROKEN, 137: BrowserEnd.BROKEN}  # by exit code: see inside.py


@dataclass(eq=False)
class EpisodeBrowser:
    """One browser, used once. It begins at the path `page` of a site, which is served at the Unix socket `site` by
    then. `socket` is where it is driven, once it is open."""

    page: str
    site: str = ""
    folder: str = ""
    socket: str = ""
    process: asyncio.subprocess.Process | None = None
    _printed: bytes = b""
    _reading: asyncio.Task[None] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def open(self) -> None:
        """Starts the browser, and returns when its first page is there. Raises `InfrastructureError` where that does
        not come."""
        self.folder = tempfile.mkdtemp(prefix="sojourn-browser-")
        os.chmod(self.folder, 0o711)  # who knows the name of the socket may connect: a program in a sandbox does
        self.socket = f"{self.folder}/{secrets.token_hex(16)}"
        try:
            await self._start()
            async with asyncio.timeout(START_S):
                while not await self._loaded():
                    if self._exited():
                        raise InfrastructureError(f"Chromium did not start in its sandbox{self._words()}")
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            await self.close()
            raise InfrastructureError(f"Chromium showed no page within {START_S:g} s of its start") from None
        except BaseException:
            await asyncio.shield(self.close())
            raise

    async def answers(self) -> bool:
        """Returns whether the browser answers at its socket."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await get(self.socket, "/json/version")
        except (OSError, TimeoutError):
            return False
        return True

    async def _loaded(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await evaluate(self.socket, READY) == f"complete {ADDRESS}{self.page}"
        except (OSError, TimeoutError):
            return False

    async def ended(self) -> BrowserEnd:
        """Waits until the browser has ended, and returns how."""
        assert self.process is not None
        return ENDS.get(await self.process.wait(), BrowserEnd.FAILED)

    async def state(self) -> BrowserEnd | None:
        """Returns how the browser ended; None where it is there still. Raises `InfrastructureError` where it failed."""
        assert self.process is not None
        if self.process.returncode is None and await self.answers():
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                end = await self.ended()
        except TimeoutError:
            raise InfrastructureError("Chromium answers no more, and has not ended") from None
        if end is BrowserEnd.FAILED:
            raise InfrastructureError(f"the Chromium of an episode failed{self._words()}")
        return end

    async def close(self) -> None:
        """Ends the browser, and deletes what it had."""
        async with self._lock:
            if (process := self.process) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            if self._reading is not None:
                self._reading.cancel()
            if self.folder:
                await asyncio.to_thread(shutil.rmtree, self.folder, True)

    async def _start(self) -> None:
        program = find_chromium()
        clients = socket.socket(socket.AF_UNIX)
        try:
            clients.bind(self.socket)
            os.chmod(self.socket, 0o666)  # a program in a sandbox is another user
            clients.listen(128)
            given = {
                "command": [program, *FLAGS, *MORE_FLAGS, f"{ADDRESS}{self.page}"], "variables": {"HOME": "/tmp"},
                "site": SITE, "site_port": SITE_PORT, "clients": clients.fileno(), "cdp_port": CDP_PORT,
                "memory_bytes": MEMORY_BYTES, "processes": PROCESSES,
            }  # fmt: skip
            await self._spawn(program, json.dumps(given), clients.fileno())
        finally:
            clients.close()

    async def _spawn(self, program: str, given: str, clients: int) -> None:
        code = f"import sys; sys.argv = ['', {given!r}]\nexec({INSIDE.read_text()!r})".encode()
        inside, passwd, group = files = [memory_file(data) for data in (code, PASSWD, GROUP)]
        try:
            line = sandbox_command(
                [python(), "-I", "-S", "-c", f"import os; exec(os.fdopen({inside}).read())"],
                disk_bytes=DISK_BYTES, passwd=passwd, group=group,
                binds={self.site: SITE, **{path: path for path in _shown(program)}},
            )  # fmt: skip
            self.process = await asyncio.create_subprocess_exec(
                *line, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE, start_new_session=True, pass_fds=(*files, clients), cwd="/",
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            )  # fmt: skip
        finally:
            for number in files:
                os.close(number)
        self._reading = asyncio.create_task(self._read(self.process.stderr))

    async def _read(self, errors: asyncio.StreamReader | None) -> None:
        while errors is not None and (data := await errors.read(KEPT_BYTES)):
            self._printed = (self._printed + data)[-KEPT_BYTES:]

    def _exited(self) -> bool:
        return self.process is not None and self.process.returncode is not None

    def _words(self) -> str:
        lines = self._printed.decode(errors="replace").strip().splitlines()
        return f": {lines[-1][-TOLD:]}" if lines else ""


def _shown(program: str) -> list[str]:
    """Returns the folders that the browser needs beside /usr: fonts, and that of its program."""
    home = os.path.dirname(os.path.realpath(program))
    return [*filter(os.path.exists, SHOWN), *([] if home.startswith("/usr/") else [home])]
