"""One Chromium for all episodes: a pool of contexts behind a semaphore, and a loopback server of the task pages.

A `Tab` is a context, whose requests reach that server and nothing else. Tabs are reused by later episodes, one at a
time, preferably by an episode of a task page that they have loaded. A tab that a crash, a timeout or a cancelled action
interrupted, or in which something was refused or opened, is closed; a browser that died is launched again by the next
episode that needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sojourn.envs.chromium import BlockingProxy, SharedChromium, find_chromium, first_line, is_responsive
from sojourn.errors import ConfigError, InfrastructureError, MissingExtraError
from sojourn_worlds.miniwob.facts import html_folder
from sojourn_worlds.miniwob.script import INIT_SCRIPT
from sojourn_worlds.miniwob.serve import PagesServer

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, JSHandle, Page

VIEWPORT = {"width": 500, "height": 320}
CLOSING_S = 5.0
T = TypeVar("T")


class LoadedPage(NamedTuple):
    """A page of the browser in which a task page is loaded, with the functions of our script."""

    page: Page
    verbs: JSHandle


@dataclass(eq=False)
class Tab:
    """One context with its pages; `page` is the one that is shown, `reusable` says whether it may be used again.

    Each task page that is reset instead of loaded again has a page of its own, which stays, as long as it is among the
    `most` that were shown last: a load takes several times as long as a reset. All others are loaded in the context's
    first page. `tainted` is set for good by whatever a page opens (a page, a worker), and `crashed` by the end of a
    renderer.
    """

    context: BrowserContext
    page: Page
    browser: Browser
    wall: BlockingProxy
    most: int
    reusable: bool = True
    tainted: bool = False
    crashed: bool = False
    _first: Page = field(init=False)
    _verbs: JSHandle | None = None
    _kept: dict[str, LoadedPage] = field(default_factory=dict)
    _opening: bool = False

    def __post_init__(self) -> None:
        self._first = self.page
        self.context.on("page", self._opened)
        self.context.on("serviceworker", self._taint)  # pyright: ignore[reportArgumentType, reportCallIssue]
        self._watch(self.page)

    def _watch(self, page: Page) -> None:
        page.on("worker", self._taint)
        page.on("crash", self._crash)

    def _opened(self, _: object) -> None:
        self.tainted = self.tainted or not self._opening

    def _taint(self, _: object) -> None:
        self.tainted = True

    def _crash(self, _: object) -> None:
        self.tainted = self.crashed = True

    def keeps(self, name: str) -> bool:
        """Returns whether a task page is loaded in a page of its own."""
        return name in self._kept

    async def show(self, name: str, url: str) -> None:
        """Shows a task page in a page of its own; loads it there unless it is there already."""
        loaded = self._kept.pop(name, None)
        if loaded is None:
            if len(self._kept) >= self.most:
                longest_unused = next(iter(self._kept))
                await self._kept.pop(longest_unused).page.close()
            self.page = await self._new_page()
            loaded = LoadedPage(self.page, await self._goto(url))
        self._kept[name] = loaded  # at the end: it is the last that was shown
        self.page, self._verbs = loaded

    async def load(self, url: str) -> None:
        """Loads an address in the context's first page, and shows it."""
        self.page = self._first
        self._verbs = await self._goto(url)

    async def _new_page(self) -> Page:
        self._opening = True
        try:
            page = await self.context.new_page()
        finally:
            self._opening = False
        self._watch(page)
        return page

    async def _goto(self, url: str) -> JSHandle:
        """Loads an address, and takes the functions of our script out of the page, so that nothing in it can use
        them."""
        await self.page.goto(url, wait_until="load")
        return await self.page.evaluate_handle("() => __sojourn()")

    async def call(self, function: str, *arguments: Any) -> Any:
        """Calls one of the functions of our script and returns its result."""
        assert self._verbs is not None
        return await self._verbs.evaluate("(verbs, [f, ...a]) => verbs[f](...a)", [function, *arguments])


class Chromium:
    """The pool of tabs, which keep `loaded` task pages between them. `errors` are the exceptions of Playwright, which
    is imported only when the world is opened."""

    def __init__(self, chromium: str, contexts: int, loaded: int, folder: Path) -> None:
        try:
            self._shared = SharedChromium(chromium, "miniwob")
        except ImportError as error:
            raise MissingExtraError("miniwob drives Chromium: pip install 'sojourn-worlds[miniwob]'") from error
        self.errors = self._shared.errors
        self._most = max(1, loaded // contexts)
        self._slots = asyncio.Semaphore(contexts)
        self._idle: list[Tab] = []
        self._background_tasks: set[asyncio.Task[Any]] = set()
        self._walls: set[BlockingProxy] = set()
        self.server = PagesServer(folder)

    async def open(self) -> None:
        """Serves the pages and launches the browser; where the caller is cancelled, it closes both again."""
        opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_up(opening))
            raise

    async def _open(self) -> None:
        await self.server.start()
        await self._shared.open()

    async def _give_up(self, opening: asyncio.Future[None]) -> None:
        await asyncio.wait({opening})
        if not opening.cancelled():
            opening.exception()  # retrieved here, as nobody else awaits it
        await self._close()

    async def failed_itself(self, tab: Tab) -> bool:
        """Returns whether the whole browser failed, and not the tab's page alone."""
        return not tab.crashed and not await is_responsive(tab.browser, self.errors)

    def first_loaded(self, pages: Sequence[str]) -> int:
        """Returns the number of the first of these task pages that an idle tab has loaded, 0 if there is none."""
        return next((n for n, page in enumerate(pages) if any(tab.keeps(page) for tab in self._idle)), 0)

    async def acquire(self, page: str) -> Tab:
        """Returns a tab, as soon as one of the `contexts` is free; `release` gives it back."""
        await self._slots.acquire()
        try:
            return self._resume(page) or await self._new_tab()
        except BaseException:
            self._slots.release()
            raise

    def release(self, tab: Tab) -> None:
        """Gives a tab back; it never waits, so that it cannot be interrupted."""
        self._slots.release()
        self._put(tab)

    def _put(self, tab: Tab) -> None:
        if self._usable(tab):
            self._idle.append(tab)
        else:
            self._in_background(self._discard(tab))

    def _usable(self, tab: Tab) -> bool:
        clean = tab.reusable and not tab.tainted and tab.wall.refused == 0
        return clean and self._shared.is_current(tab.browser)

    def _resume(self, page: str) -> Tab | None:
        for tab in [tab for tab in self._idle if not self._usable(tab)]:
            self._idle.remove(tab)
            self._in_background(self._discard(tab))
        if not self._idle:
            return None
        index = next((index for index, tab in enumerate(self._idle) if tab.keeps(page)), 0)
        return self._idle.pop(index)

    async def _new_tab(self) -> Tab:
        creation = self._in_background(self._shared.use(self._create_tab_in))
        try:
            return await asyncio.shield(creation)
        except asyncio.CancelledError:
            creation.add_done_callback(self._adopt)  # its caller has gone: the next episode takes it
            raise
        except self.errors as error:
            raise InfrastructureError(f"Chromium gave no new context: {first_line(error)}") from error

    def _adopt(self, creation: asyncio.Future[Tab]) -> None:
        if not creation.cancelled() and creation.exception() is None:
            self._put(creation.result())

    async def _create_tab_in(self, browser: Browser) -> Tab:
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
            page = await context.new_page()
            tab = Tab(context=context, page=page, browser=browser, wall=wall, most=self._most)
        except BaseException:
            wall.close()
            raise
        self._walls.add(wall)
        return tab

    def _in_background(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts what `close` waits for."""
        task = asyncio.ensure_future(coroutine)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        return task

    async def _discard(self, tab: Tab) -> None:
        """Closes a tab; where that takes long, and the browser answers nothing else either, ends its browser."""
        closing = asyncio.ensure_future(tab.context.close())
        await asyncio.wait({closing}, timeout=CLOSING_S)
        with suppress(*self.errors):
            if not closing.done() and not await is_responsive(tab.browser, self.errors):
                await tab.browser.close()
        closing.add_done_callback(_retrieve)
        tab.wall.close()
        self._walls.discard(tab.wall)

    async def close(self) -> None:
        """Closes all of it, also where the caller is cancelled."""
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        self._shared.retire()
        if self._background_tasks:
            await asyncio.gather(*self._background_tasks, return_exceptions=True)
        self._idle = []
        await self._shared.close()
        for wall in self._walls:
            wall.close()
        self._walls.clear()
        self.server.close()


async def open_chromium(chromium: str | None, contexts: int, loaded: int = 1) -> Chromium:
    """Serves the pages of `miniwob` and launches Chromium; raises `ConfigError` where it does not start."""
    pool = Chromium(find_chromium(chromium), contexts, loaded, html_folder())
    try:
        await pool.open()
    except (ConfigError, OSError):
        await pool.close()
        raise
    return pool


def _retrieve(task: asyncio.Future[Any]) -> None:
    """Takes what a task failed with, so that it is not reported as an error that nobody saw."""
    if not task.cancelled():
        task.exception()
