"""One episode of the shop in a Chromium of its own, which the agent drives by the Chrome DevTools Protocol.

The pages are those of `web`, served for each episode at a socket of its own, and the purchase is kept there, outside of
the browser's sandbox (`sojourn.envs.browser`): whatever scripts the agent runs in its pages, the reward is that of the
first purchase.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from sojourn.envs.browser import ADDRESS, BrowserEnd, EpisodeBrowser
from sojourn.errors import ActionError, InfrastructureError
from sojourn.threads import run_to_end
from sojourn.types import Message, Observation, Role, Step
from sojourn_worlds.shop.reward import Goal, judge
from sojourn_worlds.shop.store import Store, address
from sojourn_worlds.shop.text import bought
from sojourn_worlds.shop.web import Server, Session, Site

SYSTEM_PROMPT = "You shop online, in a browser. Buy what this asks for: "
NAME, STOP = "shopper", "stop"
PAGE = f"/s/{NAME}/"


@dataclass(eq=False)
class CdpPlay:
    """A site with one shopper, and the browser of the agent. It ends with the purchase, or when the agent does."""

    store: Store
    goal: Goal
    key: str
    browser: EpisodeBrowser = field(default_factory=lambda: EpisodeBrowser(page=PAGE))
    session: Session = field(default_factory=Session)
    done: bool = False
    purchased: asyncio.Event = field(default_factory=asyncio.Event)
    ends: AsyncExitStack = field(default_factory=AsyncExitStack)  # closes what was opened, one whatever another does

    @property
    def cdp_socket(self) -> str:
        return self.browser.socket

    async def start(self) -> Observation:
        self.browser.site = await self._serve()
        self.ends.push_async_callback(self.browser.close)
        await self.browser.open()
        seen = Message(Role.USER, f"The shop is open in your browser, at {ADDRESS}{PAGE}")
        return Observation((seen,), system=(Message(Role.SYSTEM, SYSTEM_PROMPT + self.goal.instruction),))

    async def browsed(self) -> None:
        waits = [asyncio.create_task(self.purchased.wait()), asyncio.create_task(self.browser.ended())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def step(self, agent: str, action: Message) -> Step:
        """Judges what was bought, and ends the episode, for an empty text or "stop"."""
        if self.done:
            raise InfrastructureError("a shop was given an action after its end: play each task's world once")
        if action.calls or action.text.strip() not in ("", STOP):
            raise ActionError(f'Act in the browser; say only "{STOP}", to end without a purchase.')
        end = None if self.session.purchase is not None else await self.browser.state()
        purchase, self.done = self.session.purchase, True  # which may have come while the browser was asked
        if purchase is not None:
            product = self.store.catalogue.by_id[purchase.product]
            return bought(agent, judge(product, dict(purchase.chosen), self.goal))
        info = {"lost": 1.0} if end is BrowserEnd.BROKEN else {}
        return Step(None, {agent: 0.0}, done=True, success=False, info=info)

    async def close(self) -> None:
        """Ends the browser and the site, also where the caller is cancelled."""
        await asyncio.shield(self.ends.aclose())

    async def _serve(self) -> str:
        """Serves the site of this episode, and returns the path of its Unix socket."""
        loop, site = asyncio.get_running_loop(), Site(self.store)
        self.session.on_purchase = lambda: loop.call_soon_threadsafe(self.purchased.set)
        site.sessions[NAME] = self.session
        folder = tempfile.mkdtemp(prefix="sojourn-shop-")
        self.ends.push_async_callback(run_to_end, shutil.rmtree, folder, True)
        os.chmod(folder, 0o711)
        local, path = socket.socket(socket.AF_UNIX), f"{folder}/{secrets.token_hex(16)}"
        local.bind(path)
        os.chmod(path, 0o666)  # a browser in a sandbox is another user
        server = Server(site.app, local)
        self.ends.push_async_callback(run_to_end, server.stop)
        await asyncio.to_thread(server.start)
        return path

    def state_key(self) -> str:
        return f"{self.key}/{address(self.session.state)}"
