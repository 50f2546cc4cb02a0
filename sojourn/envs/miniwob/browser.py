"""One Chromium for all episodes: a pool of contexts behind a semaphore, and a loopback server of the task pages.

A seat is a context with one page. Seats are used again by later episodes (a context costs 0.25 s), preferably by an
episode of the page that they already show. A seat left unsound, by a crash, a timeout or a cancelled action, is thrown
away; a browser that died is launched again by the next episode that needs it.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sojourn.envs.miniwob.script import INIT_SCRIPT
from sojourn.envs.miniwob.serve import PagesServer
from sojourn.envs.variables import inherited
from sojourn.errors import ConfigError, InfrastructureError, MissingExtraError

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page, Playwright

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-renderer-backgrounding", "--disable-background-timer-throttling"),
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # nothing but the server below can be reached
)
VIEWPORT = {"width": 500, "height": 320}
CLOSING_S = 5.0


def executable(given: str | None) -> str:
    """The Chromium to run: the given one, else $SOJOURN_CHROMIUM, else the first on PATH."""
    wanted = given or environ.get("SOJOURN_CHROMIUM")
    if wanted:
        found = shutil.which(wanted)
        if not found:
            raise ConfigError(f"there is no program {wanted!r} to run as Chromium: set chromium or $SOJOURN_CHROMIUM")
        return found
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        found = shutil.which(name)
        if found:
            return found
    raise ConfigError("no Chromium on PATH: install it (apt-get install chromium) or set $SOJOURN_CHROMIUM to its path")


@dataclass(eq=False)
class Seat:
    """One context with one page; `shows` is the task page that it has loaded, `sound` whether it may be used again."""

    context: BrowserContext
    page: Page
    browser: Browser
    shows: str = ""
    sound: bool = True


class Chromium:
    """The pool. `errors` are what Playwright raises; it is imported here only, when the world is opened."""

    def __init__(self, chromium: str, contexts: int, folder: Path) -> None:
        try:
            from playwright.async_api import Error
        except ImportError as error:
            raise MissingExtraError("the miniwob world drives Chromium: pip install 'sojourn[miniwob]'") from error
        self.errors: tuple[type[BaseException], ...] = (Error, OSError)
        self._executable = chromium
        self._slots = asyncio.Semaphore(contexts)
        self._launching = asyncio.Lock()
        self._idle: list[Seat] = []
        self._chores: set[asyncio.Task[Any]] = set()
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self.server = PagesServer(folder)

    async def open(self) -> None:
        """Serve the pages and launch the browser; where whoever waits is cancelled, end both again."""
        opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_up(opening))
            raise

    async def _open(self) -> None:
        await self.server.start()
        await self.launch()

    async def _give_up(self, opening: asyncio.Future[None]) -> None:
        await asyncio.wait({opening})
        if not opening.cancelled():
            opening.exception()  # heard here, as nobody else does
        await self._close()

    async def launch(self) -> Browser:
        """The browser, launched (again) when it is not there."""
        async with self._launching:
            if self._browser is not None and self._browser.is_connected():
                return self._browser
            await self._stop()
            from playwright.async_api import async_playwright

            self._playwright = playwright = await async_playwright().start()
            self._browser = await playwright.chromium.launch(
                executable_path=self._executable, args=list(FLAGS), env={**inherited()}
            )
            return self._browser

    async def seat(self, page: str) -> Seat:
        """A seat, as soon as one of the `contexts` is free; `leave` gives it back."""
        await self._slots.acquire()
        try:
            return self._resume(page) or await self._new()
        except BaseException:
            self._slots.release()
            raise

    def leave(self, seat: Seat) -> None:
        """Give a seat back; never waits, so that it cannot be interrupted."""
        self._slots.release()
        self._put(seat)

    def _put(self, seat: Seat) -> None:
        if seat.sound and seat.browser is self._browser and seat.browser.is_connected():
            self._idle.append(seat)
        else:
            self._later(self._discard(seat))

    def _resume(self, page: str) -> Seat | None:
        self._idle = [seat for seat in self._idle if seat.browser is self._browser and seat.browser.is_connected()]
        if not self._idle:
            return None
        best = next((index for index, seat in enumerate(self._idle) if seat.shows == page), 0)
        return self._idle.pop(best)

    async def _new(self) -> Seat:
        making = asyncio.ensure_future(self._make())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(self._adopt)  # nobody waits for it any more: the next episode takes it
            raise
        except self.errors as error:
            raise InfrastructureError(f"Chromium gave no new context: {_first_line(error)}") from error

    def _adopt(self, making: asyncio.Future[Seat]) -> None:
        if not making.cancelled() and making.exception() is None:
            self._put(making.result())

    async def _make(self) -> Seat:
        browser = await self.launch()
        try:
            return await self._make_in(browser)
        except self.errors:  # a browser whose driver died still calls itself connected: launch another, once
            async with self._launching:
                if self._browser is browser:
                    await self._stop()
            return await self._make_in(await self.launch())

    async def _make_in(self, browser: Browser) -> Seat:
        context = await browser.new_context(
            viewport=VIEWPORT,  # pyright: ignore[reportArgumentType]
            timezone_id="UTC",
            locale="en-US",
        )
        await context.add_init_script(INIT_SCRIPT)
        return Seat(context=context, page=await context.new_page(), browser=browser)

    def _later(self, chore: Any) -> None:
        task = asyncio.ensure_future(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _discard(self, seat: Seat) -> None:
        """Close a seat; where a page hangs so that it cannot be closed, end its browser."""
        try:
            await asyncio.wait_for(seat.context.close(), CLOSING_S)
        except TimeoutError:
            with suppress(*self.errors):
                await seat.browser.close()
        except self.errors:
            pass

    async def _stop(self) -> None:
        browser, playwright, self._browser, self._playwright = self._browser, self._playwright, None, None
        for part in (browser.close if browser else None, playwright.stop if playwright else None):
            if part is not None:
                with suppress(TimeoutError, Exception):  # it may already be dead, in ways that Playwright does not name
                    await asyncio.wait_for(part(), CLOSING_S)

    async def close(self) -> None:
        """All of it, also where whoever waits is cancelled."""
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        if self._chores:
            await asyncio.gather(*self._chores, return_exceptions=True)
        self._idle = []
        async with self._launching:
            await self._stop()
        self.server.close()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
