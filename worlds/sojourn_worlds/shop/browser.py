"""One episode of the shop in Chromium: the pages of `web`, read and clicked through Playwright.

Observations are the page's visible text, actions are typed and clicked in the page, and the reward is computed here
from what the site's session says was bought.

The tabs reach the site's server alone (`sojourn.envs.chromium.BlockingProxy`). Where a tab fails after an action (it
hangs, crashes, shows something else than a page of the shop), the episode ends without reward; only a browser that
fails as a whole is a failure of the infrastructure.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

try:
    from playwright.async_api import Browser as Chromium
    from playwright.async_api import BrowserContext, Error, Page
except ModuleNotFoundError as error:
    from sojourn.errors import MissingExtraError

    raise MissingExtraError(
        f"the web surface of the shop needs the package '{error.name}', which is not installed: "
        "pip install 'sojourn-worlds[shop]' playwright"
    ) from None

from sojourn.envs.chromium import BlockingProxy, SharedChromium, find_chromium, first_line, is_responsive
from sojourn.errors import ActionError, InfrastructureError
from sojourn.threads import run_to_end
from sojourn.types import Message, Observation, Role, Step
from sojourn_worlds.shop.expert import advise
from sojourn_worlds.shop.reward import Goal, judge
from sojourn_worlds.shop.store import BACK, Store, address, parse
from sojourn_worlds.shop.text import bought, instructions
from sojourn_worlds.shop.web import Server, Session, Site

STEP_S = 60.0
READ = """() => ({text: document.querySelector("main").innerText,
                  labels: [...document.querySelectorAll("[data-click]")].map(e => e.dataset.click)})"""

FIND = """number => {const e = document.querySelectorAll("[data-click]")[number]; e.scrollIntoView({block: "center"});
                     const box = e.getClientRects()[0]; return [box.x + box.width / 2, box.y + box.height / 2];}"""
"""Returns where to click: the middle of the first line box of a link, which may be broken over two lines."""


@dataclass(eq=False)
class Browser:
    """The site's server and one Chromium, shared by all episodes; an episode is a tab with a session of its own. Where
    Chromium died, the next episode launches it again."""

    site: Site
    server: Server
    chromium: SharedChromium
    wall: BlockingProxy
    context: BrowserContext | None = None
    making: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    async def open(cls, store: Store) -> Browser:
        site = Site(store)
        chromium = SharedChromium(find_chromium(), "shop")
        opened = cls(site, Server(site.app), chromium, BlockingProxy())
        try:
            await opened.wall.start()
            await chromium.open()
            await asyncio.to_thread(opened.server.start)
        except BaseException:
            await opened.close()
            raise
        return opened

    async def close(self) -> None:
        """Closes all of it, also where the caller is cancelled."""
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        async with AsyncExitStack() as ends:  # where one fails to close, the others are closed all the same
            ends.callback(self.wall.close)
            ends.push_async_callback(run_to_end, self.server.stop)
            ends.push_async_callback(self.chromium.close)

    async def tab(self) -> Page:
        """Returns a new tab. Raises `InfrastructureError` where Chromium gives none."""
        try:
            return await self.chromium.use(self._tab_in)
        except self.chromium.errors as error:
            raise InfrastructureError(f"Chromium gave the shop no new tab: {first_line(error)}") from error

    async def _tab_in(self, chromium: Chromium) -> Page:
        async with self.making:
            if self.context is None or self.context.browser is not chromium:
                own = self.server.url.removeprefix("http://")
                self.context = await chromium.new_context(**self.wall.context_options(own))
            return await self.context.new_page()

    def play(self, goal: Goal, *, key: str, choices: bool) -> WebPlay:
        return WebPlay(self, goal, key, choices, self.site.enter())


@dataclass(eq=False)
class WebPlay:
    """A tab of the shared browser. It cannot fork, as a tab has one history; the text surface can."""

    browser: Browser
    goal: Goal
    key: str
    choices: bool
    name: str
    tab: Page | None = None
    labels: tuple[str, ...] = ()
    lost: bool = False

    @property
    def session(self) -> Session:
        return self.browser.site.sessions[self.name]

    async def start(self) -> Observation:
        tab = self.tab = await self.browser.tab()
        await tab.goto(f"{self.browser.server.url}/s/{self.name}/", wait_until="domcontentloaded")
        return await self._observe(tab, instructions(self.goal))

    async def step(self, agent: str, action: Message) -> Step:
        if self.tab is None or self.lost or self.session.purchase is not None:
            raise InfrastructureError("a shop was given an action before its start or after its end")
        verb, argument = parse(action.text)
        try:
            async with asyncio.timeout(STEP_S):
                return await self._apply(agent, self.tab, verb, argument)
        except (TimeoutError, Error) as error:
            browser = self.tab.context.browser
            if browser is None or not await is_responsive(browser, self.browser.chromium.errors):
                raise InfrastructureError(f"Chromium failed in the shop: {first_line(error)}") from error
            self.lost = True
            return Step(None, {agent: 0.0}, done=True, success=False, info={"lost": 1.0})

    async def _apply(self, agent: str, tab: Page, verb: str, argument: str) -> Step:
        await (self._search if verb == "search" else self._click)(tab, argument)
        purchase = self.session.purchase
        if purchase is None:
            return Step(await self._observe(tab))
        product = self.browser.site.store.catalogue.by_id[purchase.product]
        return bought(agent, judge(product, dict(purchase.chosen), self.goal))

    async def close(self) -> None:
        self.browser.site.leave(self.name)
        if self.tab is not None:
            with suppress(Error):  # where Chromium died, the tab is gone
                await self.tab.close()

    def state_key(self) -> str:
        return f"{self.key}/{address(self.session.state)}"

    def expert(self) -> str:
        return advise(self.browser.site.store, self.goal, self.session.state)

    async def _search(self, tab: Page, words: str) -> None:
        box = await tab.query_selector("input[name=q]")
        if box is None:
            raise ActionError(f"There is no search box here, say click[{BACK}] first.")
        await box.focus()
        await tab.keyboard.insert_text(words)
        async with tab.expect_navigation(wait_until="domcontentloaded"):
            await tab.keyboard.press("Enter")

    async def _click(self, tab: Page, label: str) -> None:
        known = next(
            (number for number, shown_label in enumerate(self.labels) if shown_label.lower() == label.lower()), None
        )
        if known is None:
            raise ActionError(f'There is no "{label[:30]}" to click here.')
        x, y = await tab.evaluate(FIND, known)
        async with tab.expect_navigation(wait_until="domcontentloaded"):
            await tab.mouse.click(x, y)

    async def _observe(self, tab: Page, system: tuple[Message, ...] = ()) -> Observation:
        page = await tab.evaluate(READ)
        self.labels = tuple(page["labels"])
        lines = [" ".join(line.split()) for line in page["text"].splitlines()]
        text = "\n".join(line for line in lines if line)
        choices = tuple(f"click[{label}]" for label in self.labels) if self.choices else ()
        return Observation((Message(Role.USER, text),), system=system, choices=choices)
