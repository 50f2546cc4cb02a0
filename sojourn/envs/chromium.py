"""Launches Chromium for every world: finds the program, sets its flags, and uses its own sandbox where that works.

`BlockingProxy` refuses and counts every request. A browser context with this proxy reaches the one address that is
exempt, and nothing else: its popups, workers, WebSockets, prefetches and redirects go through the proxy too, on
loopback as well as beyond. DNS names do not resolve, and WebRTC may not send around a proxy.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sojourn.envs.variables import inherited_variables
from sojourn.errors import ConfigError, InfrastructureError

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

T = TypeVar("T")

FLAGS = (
    *("--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-renderer-backgrounding", "--disable-background-timer-throttling"),
    "--disable-smooth-scrolling",  # which takes real time: where a key scrolled to would depend on the machine
    "--process-per-site",  # the pages of one context share a process; those of two contexts never do
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""The shell comes first: it draws no window, and takes 60% of the time that a whole browser takes, and two thirds of
the memory (measured: LOG.md)."""
HELPERS = ("/usr/lib/chromium/chrome-sandbox", "/opt/google/chrome/chrome-sandbox")  # setuid, without namespaces
TRY_UNSHARE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({}) != 0)"
NEW_USER_AND_PID = 0x10000000 | 0x20000000
ANSWER_S = 10.0
STOPPING_S = 5.0
MAX_REQUEST_BYTES = 65536
# Chromium sends this request by itself, for any page with a field.
CHROMIUM_OWN_REQUEST = b"CONNECT content-autofill.googleapis.com:443 "
AS_ROOT = (
    "Chromium runs without its own sandbox, because the user is root: a page that breaks out of its renderer has the "
    "rights of this user. Run as an ordinary user."
)
WITHOUT = (
    "Chromium runs without its own sandbox, because this user may not create user namespaces: a page that breaks out "
    "of its renderer has the rights of this user. Allow them (sysctl kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0; a container needs a seccomp profile that lets them through)."
)


def find_chromium(given: str | None = None) -> str:
    """Returns the path of the Chromium to run: the given one, else $SOJOURN_CHROMIUM, else the first on PATH."""
    requested = given or os.environ.get("SOJOURN_CHROMIUM")
    if requested:
        path = shutil.which(requested)
        if not path:
            raise ConfigError(
                f"there is no program {requested!r} to run as Chromium: set chromium or $SOJOURN_CHROMIUM"
            )
        return path
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    raise ConfigError(
        "no Chromium on PATH: install it (apt-get install chromium-headless-shell, or chromium) or set "
        "$SOJOURN_CHROMIUM to its path"
    )


@cache
def risks() -> tuple[str, ...]:
    """Returns the reasons why this user cannot use Chromium's own sandbox on this machine; empty where it can be used.

    Where it cannot, Chromium runs without it rather than not at all: the text of an agent does not become script in the
    first place, and a refusal would only drive users to root, who has no sandbox either.
    """
    if os.geteuid() == 0:
        return (AS_ROOT,)
    if any(_is_setuid_root(Path(path)) for path in HELPERS) or _can_create_namespaces():
        return ()
    return (WITHOUT,)


def _is_setuid_root(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == 0 and bool(status.st_mode & stat.S_ISUID)


def _can_create_namespaces() -> bool:
    """Tries in a separate process whether this user may create a user namespace and a process namespace."""
    if not hasattr(ctypes.CDLL(None), "unshare"):  # not Linux: the sandbox of another system needs no namespaces
        return True
    trial = [sys.executable, "-I", "-S", "-c", TRY_UNSHARE.format(NEW_USER_AND_PID)]
    return subprocess.run(trial, check=False, capture_output=True).returncode == 0


async def launch(playwright: Playwright, program: str) -> Browser:
    """Launches the program, in its own sandbox unless `risks` says why not."""
    return await playwright.chromium.launch(
        executable_path=program, args=list(FLAGS), chromium_sandbox=not risks(), env={**inherited_variables()}
    )


async def is_responsive(browser: Browser, errors: tuple[type[BaseException], ...]) -> bool:
    """Returns whether the browser process still answers, whatever one of its pages does. `errors` are Playwright's."""
    if not browser.is_connected():
        return False
    try:
        async with asyncio.timeout(ANSWER_S):
            session = await browser.new_browser_cdp_session()
            await session.send("Browser.getVersion")
            await session.detach()
    except (TimeoutError, *errors):
        return False
    return True


def first_line(error: BaseException) -> str:
    """Returns the first line of what an error of Playwright says, which is followed by the log of the call."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class SharedChromium:
    """One Chromium for all plays of a world. It is launched when a play first asks for it, and again after it died."""

    def __init__(self, program: str, world: str) -> None:
        from playwright.async_api import Error  # imported only when a world is opened

        self.program = program
        self.world = world
        self.errors: tuple[type[BaseException], ...] = (Error, OSError)
        self._launching = asyncio.Lock()
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._closed = False

    async def open(self) -> None:
        """Launches the browser. Raises `ConfigError` where the program does not start as one."""
        try:
            await self.launched()
        except self.errors as error:
            raise ConfigError(f"{self.program} does not start as Chromium: {first_line(error)}") from error

    def is_current(self, browser: Browser) -> bool:
        """Returns whether this is the browser that plays get now, and lives."""
        return browser is self._browser and browser.is_connected()

    async def launched(self) -> Browser:
        """Returns the browser, and launches one where there is none. Raises `InfrastructureError` after the close."""
        async with self._launching:
            if self._closed:
                raise InfrastructureError(f"the world {self.world} was closed while an episode asked for its browser")
            if self._browser is not None and self._browser.is_connected():
                return self._browser
            await self._stop()
            from playwright.async_api import async_playwright

            self._playwright = playwright = await async_playwright().start()
            self._browser = await launch(playwright, self.program)
            return self._browser

    async def use(self, work: Callable[[Browser], Awaitable[T]]) -> T:
        """Returns what `work` makes of the browser; where it fails and the browser does not answer, launches another
        and tries once more. A browser whose driver died still calls itself connected."""
        browser = await self.launched()
        try:
            return await work(browser)
        except self.errors:
            if await is_responsive(browser, self.errors):
                raise
            async with self._launching:
                if self._browser is browser:
                    await self._stop()
            return await work(await self.launched())

    def retire(self) -> None:
        """Launches no other browser from now on."""
        self._closed = True

    async def close(self) -> None:
        """Ends the browser for good."""
        self.retire()
        async with self._launching:
            await self._stop()

    async def _stop(self) -> None:
        browser, playwright, self._browser, self._playwright = self._browser, self._playwright, None, None
        for part in (browser.close if browser else None, playwright.stop if playwright else None):
            if part is not None:
                with suppress(TimeoutError, Exception):  # it may already be dead, in ways that Playwright does not name
                    await asyncio.wait_for(part(), STOPPING_S)


class BlockingProxy:
    """A proxy on a free port of loopback that refuses every request; `refused` counts the requests of pages.

    `context_options(exempt)` returns the arguments of a Playwright context whose requests all go through the proxy,
    those to loopback included, except those to the address `exempt`, such as "127.0.0.1:8000".
    """

    def __init__(self) -> None:
        self.refused = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Transport] = set()

    async def start(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(lambda: _Refusal(self), "127.0.0.1", 0)

    def context_options(self, exempt: str) -> dict[str, Any]:
        assert self._server is not None
        url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return {"proxy": {"server": url, "bypass": f"<-loopback>,{exempt}"}}

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for transport in list(self._open):
            transport.abort()


class _Refusal(asyncio.Protocol):
    """One connection to the proxy: the first request is answered with 403, and the connection is closed."""

    def __init__(self, proxy: BlockingProxy) -> None:
        self._proxy = proxy
        self._waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._proxy._open.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._proxy._open.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        if b"\r\n\r\n" in self._waiting or len(self._waiting) > MAX_REQUEST_BYTES:
            self._proxy.refused += not self._waiting.startswith(CHROMIUM_OWN_REQUEST)
            self._transport.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self._transport.close()
