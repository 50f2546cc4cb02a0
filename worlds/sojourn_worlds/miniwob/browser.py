"""One Chromium for all episodes: a pool of contexts behind a semaphore, and a loopback server of the task pages.

A seat is a context with one page, whose requests reach that server and nothing else. Seats are used again by later
episodes (a context costs 0.25 s), preferably by an episode of the page that they already show. A seat left unsound, by
a crash, a timeout or a cancelled action, or in which something was refused or opened, is thrown away; a browser that
died is launched again by the next episode that needs it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sojourn.envs.chromium import BlockingProxy, is_responsive, launch
from sojourn.errors import InfrastructureError, MissingExtraError
from sojourn_worlds.miniwob.script import INIT_SCRIPT
from sojourn_worlds.miniwob.serve import PagesServer

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, JSHandle, Page, Playwright

VIEWPORT = {"width": 500, "height": 320}
CLOSING_S = 5.0


@dataclass(eq=False)
class Seat:
    """One context with one page; `shows` is the task page that it has loaded, `sound` whether it may be used again.

    `tainted` is set for good by whatever a page opens (a page, a worker), and `crashed` by the end of its renderer.
    """

    context: BrowserContext
    page: Page
    browser: Browser
    wall: BlockingProxy
    shows: str = ""
    sound: bool = True
    tainted: bool = False
    crashed: bool = False
    verbs: JSHandle | None = None

    def watch(self) -> None:
        for source, event in ((self.context, "page"), (self.context, "serviceworker"), (self.page, "worker")):
            source.on(event, self._taint)  # pyright: ignore[reportArgumentType, reportCallIssue]
        self.page.on("crash", self._crash)

    def _taint(self, _: object) -> None:
        self.tainted = True

    def _crash(self, _: object) -> None:
        self.tainted = self.crashed = True

    async def goto(self, url: str) -> None:
        """Loads a page, and takes the verbs of our script from it, so that nothing in it can use them."""
        self.shows = ""
        await self.page.goto(url, wait_until="load")
        self.verbs = await self.page.evaluate_handle("() => __sojourn()")

    async def call(self, function: str, *arguments: Any) -> Any:
        """What one of the verbs returns."""
        assert self.verbs is not None
        return await self.verbs.evaluate("(verbs, [f, ...a]) => verbs[f](...a)", [function, *arguments])


class Chromium:
    """The pool. `errors` are what Playwright raises; it is imported here only, when the world is opened."""

    def __init__(self, chromium: str, contexts: int, folder: Path) -> None:
        try:
            from playwright.async_api import Error
        except ImportError as error:
            raise MissingExtraError("miniwob drives Chromium: pip install 'sojourn-worlds[miniwob]'") from error
        self.errors: tuple[type[BaseException], ...] = (Error, OSError)
        self._executable = chromium
        self._slots = asyncio.Semaphore(contexts)
        self._launching = asyncio.Lock()
        self._idle: list[Seat] = []
        self._chores: set[asyncio.Task[Any]] = set()
        self._walls: set[BlockingProxy] = set()
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
            self._browser = await launch(playwright, self._executable)
            return self._browser

    async def failed_itself(self, seat: Seat) -> bool:
        """Whether a failure is the whole browser's, and not that of the seat's page alone."""
        return not seat.crashed and not await is_responsive(seat.browser, self.errors)

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
        if self._usable(seat):
            self._idle.append(seat)
        else:
            self._later(self._discard(seat))

    def _usable(self, seat: Seat) -> bool:
        clean = seat.sound and not seat.tainted and seat.wall.refused == 0
        return clean and seat.browser is self._browser and seat.browser.is_connected()

    def _resume(self, page: str) -> Seat | None:
        for seat in [seat for seat in self._idle if not self._usable(seat)]:
            self._idle.remove(seat)
            self._later(self._discard(seat))
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
        wall = BlockingProxy()
        await wall.start()
        try:
            context = await browser.new_context(
                viewport=VIEWPORT,  # pyright: ignore[reportArgumentType]
                timezone_id="UTC",
                locale="en-US",
                **wall.context_options(self.server.address),
            )
            await context.add_init_script(INIT_SCRIPT)
            seat = Seat(context=context, page=await context.new_page(), browser=browser, wall=wall)
        except BaseException:
            wall.close()
            raise
        seat.watch()
        self._walls.add(wall)
        return seat

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
        seat.wall.close()
        self._walls.discard(seat.wall)

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
        for wall in self._walls:
            wall.close()
        self._walls.clear()
        self.server.close()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
