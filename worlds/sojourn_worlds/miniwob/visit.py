"""One episode on one page: the agent's actions become real mouse and keyboard events in Chromium.

A step costs one evaluation that finds the element, the events, and one evaluation that moves the clock, reads the page
and its reward. The reward is the page's raw one, without the discount by time; it is read only when the page has ended
the episode, and never shown.

Whatever goes wrong with the page after an action (it hangs, crashes, is emptied, navigates elsewhere) is attributed to
the action: the episode ends with the lowest reward. Only a browser that fails as a whole, and a page that fails before
the first action, are failures of the infrastructure.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

from sojourn.envs.chromium import first_line
from sojourn.errors import ActionError, InfrastructureError
from sojourn.types import Message, Observation, Role, Step, Task
from sojourn_worlds.miniwob.actions import Action, Point, Target, parse
from sojourn_worlds.miniwob.browser import Chromium, Tab
from sojourn_worlds.miniwob.experts import EXPERTS
from sojourn_worlds.miniwob.experts.look import fail
from sojourn_worlds.miniwob.facts import FILLER, RELOADED
from sojourn_worlds.miniwob.page import Element, Page, PageReader, choices

RESTING_POINT = (400, 300)  # of the mouse before an episode: beside the task and its display
START_MS = 200  # page time before the first observation, for what a page draws with a timer
NATIVE_PICKERS = frozenset(
    {"date", "time", "month", "week", "color", "slider"}
)  # native pickers: their value is set as a whole
INSTRUCTION = (
    'Reply with one action: click {0}, type {0} "text", select {0}, press KEY, scroll down, wait{1}.\nTask: {2}'
)
COORDINATE_ACTIONS = ", click x,y, drag {0} to x,y, hover {0}"
LOWEST_REWARD = -1.0  # the lowest reward of any page
CLIPBOARD = {"Control+C": "copy", "Control+X": "cut", "Control+V": "paste"}


class PageError(InfrastructureError):
    """The page or its browser failed; `Visit.step` finds out which of them."""


class Settings(Protocol):
    """The fields of the world's config that an episode reads; `MiniWoB` explains each."""

    @property
    def observation(self) -> str: ...
    @property
    def refs(self) -> str: ...
    @property
    def marks(self) -> bool: ...
    @property
    def filler(self) -> bool: ...
    @property
    def longest(self) -> int: ...
    @property
    def choices(self) -> bool: ...
    @property
    def turns(self) -> int: ...
    @property
    def step_s(self) -> float: ...
    @property
    def timeout_s(self) -> float: ...


class Visit:
    """The `Env`. `blobs` holds the screenshots that messages name: PNG bytes by SHA-256."""

    def __init__(self, config: Settings, task: Task, chromium: Chromium) -> None:
        self.task = task
        self.blobs: dict[str, bytes] = {}
        self._config = config
        self._name = str(task.data["page"])
        self._chromium = chromium
        if self._name in EXPERTS:
            self.expert = self._expert_action
        self._tab: Tab | None = None
        self._page: Page | None = None
        self._screenshot = ""
        self._clipboard = ""
        self._page_refusals = self._reported_refusals = 0  # counted by the page itself; reported in infos so far
        self._actions_taken: tuple[str, ...] = ()
        self._resettable = (
            self._name not in RELOADED and config.observation != "screenshot"
        )  # hover and focus leave traces
        self._reader = PageReader(
            refs=config.refs, filler=config.filler or self._name not in FILLER, longest=config.longest
        )

    async def start(self) -> Observation:
        self._tab = await self._chromium.acquire(self._name)
        async with self._guarded_tab() as tab:
            server = self._chromium.server
            url = f"{server.url}/miniwob/{self._name}.html"
            await (tab.show(self._name, url) if self._resettable else tab.load(url))
            await tab.page.mouse.move(*RESTING_POINT)
            policy = server.policy(self._name)
            self._page = await self._read(
                "reset", str(self.task.seed), START_MS, policy.reward_scripts, policy.known_scripts
            )
            if self._info(tab):
                raise PageError(f"{self._name} did not start clean: something that it asked for was refused")
            return await self._observation(first=True)

    async def step(self, agent: str, action: Message) -> Step:
        """Raises `ActionError` for what cannot be done here, and `InfrastructureError` where the whole browser failed.

        `info` has "refused": how many scripts, requests, popups and the like were refused since the last step.
        """
        parsed = parse(action.text, self._current_page())
        try:
            return await self._apply(agent, parsed, action.text.strip())
        except PageError:
            tab = self._tab
            if tab is None or await self._chromium.failed_itself(tab):
                raise
            self._page = replace(self._current_page(), done=True)
            return Step(None, {agent: LOWEST_REWARD}, done=True, success=False, info={"lost": 1.0, **self._info(tab)})

    async def _apply(self, agent: str, action: Action, action_text: str) -> Step:
        async with self._guarded_tab() as tab:
            await self._perform(action)
            self._actions_taken += (action_text,)
            page = self._page = await self._read("after", round(self._config.step_s * 1000))
            info = self._info(tab)
            if page.done:
                return Step(None, {agent: page.raw}, done=True, success=page.raw > 0, info=info)
            if len(self._actions_taken) >= self._config.turns:
                self._page = replace(page, done=True)
                return Step(None, {agent: 0.0}, done=True, success=False, info=info)
            return Step(await self._observation(first=False), info=info)

    async def close(self) -> None:
        if self._tab is not None:
            tab, self._tab = self._tab, None
            self._chromium.release(tab)

    async def _expert_action(self) -> str:
        """Returns the next action of the page's scripted expert. Raises `InfrastructureError` where it finds none, as
        on a page that somebody else has brought into a state that it does not know."""
        page = self._current_page()
        if self._config.observation == "dom":
            page = await self._as_text(page)
        try:
            return EXPERTS[self._name](replace(page, actions_taken=self._actions_taken))
        except (StopIteration, LookupError, ValueError) as error:
            raise fail(page, "next action") from error

    async def _as_text(self, page: Page) -> Page:
        """Returns the page as text, for an expert, with the labels of its DOM reading."""
        async with self._guarded_tab():
            page_now = self._reader(await self._call("read", "text"))
            await self._call("read", "dom")  # what it shows is what can be acted on
        labels = {(element.id, element.option): element.label for element in page.elements}
        known = {e: replace(e, label=labels.get((e.id, e.option), e.label)) for e in page_now.elements}
        order = tuple(known[part] if isinstance(part, Element) else part for part in page_now.in_order)
        return replace(page_now, elements=tuple(known.values()), in_order=order)

    def state_key(self) -> str:
        """Hashes the page as text (its tree or DOM, where that is shown); a screenshot does not enter."""
        text = self._page.text if self._page and not self._page.done else ""
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _current_page(self) -> Page:
        if self._page is None or self._page.done:
            raise ValueError("this visit is not under way: `start` it first, and use a new one after it is done")
        return self._page

    @asynccontextmanager
    async def _guarded_tab(self) -> AsyncIterator[Tab]:
        """Yields the tab. Turns a failure of the browser into a `PageError`, after which the tab is not used again."""
        tab = self._tab
        if tab is None:
            raise ValueError("this visit is closed: make a new one")
        tab.reusable = False
        try:
            async with asyncio.timeout(self._config.timeout_s):
                yield tab
        except ActionError:
            tab.reusable = True
            raise
        except TimeoutError as error:
            raise PageError(f"{self._name} gave no answer within {self._config.timeout_s} s") from error
        except self._chromium.errors as error:
            raise PageError(f"Chromium failed on {self._name}: {first_line(error)}") from error
        tab.reusable = True

    # Reading

    async def _call(self, function: str, *arguments: Any) -> Any:
        assert self._tab is not None
        return await self._tab.call(function, *arguments)

    def _info(self, tab: Tab) -> dict[str, float]:
        """Counts what was refused since the last call; a tab in which something was refused is not used again."""
        refused = self._page_refusals + tab.wall.refused
        new, self._reported_refusals = refused - self._reported_refusals, refused
        tab.tainted = tab.tainted or new > 0
        return {"refused": float(new)} if new else {}

    async def _read(self, function: str, *arguments: Any) -> Page:
        report = await self._call(function, *arguments, "dom" if self._config.observation == "dom" else "text")
        self._page_refusals = report["refused"]
        if report["done"] or self._config.observation in ("text", "dom"):
            return self._reader(report)
        assert self._tab is not None
        reading = self._reader(report)
        if self._config.observation == "aria":
            return self._reader(report, await self._tab.page.locator("body").aria_snapshot() or "(empty page)")
        if self._config.marks:
            await self._call("mark", [[e.id, e.label] for e in reading.elements if e.option < 0])
        await self._call("pictured")
        image = await self._tab.page.screenshot(clip={"x": 0, "y": 0, "width": 160, "height": 210})
        self._screenshot = hashlib.sha256(image).hexdigest()
        self.blobs[self._screenshot] = image
        if self._config.marks:
            await self._call("mark", [])
        return reading

    async def _observation(self, *, first: bool) -> Observation:
        page = self._current_page()
        seen = Message(Role.USER, page.text)
        if self._config.observation == "screenshot":
            options = "\n".join(line for line in page.text.splitlines() if line.startswith("options "))
            seen = Message(Role.USER, options if self._config.marks else "", images=(self._screenshot,))
        return Observation(
            messages=(seen,),
            system=(Message(Role.SYSTEM, self._instruction(page)),) if first else (),
            choices=choices(page) if self._config.choices else (),
        )

    def _instruction(self, page: Page) -> str:
        named = "NAME" if self._config.refs == "name" else "NUMBER"
        drawn = self._config.observation == "screenshot" or any(
            re.fullmatch(r"\d+,\d+", element.label) for element in page.elements
        )
        places = COORDINATE_ACTIONS.format(named) if drawn or "drag" in self._name else ""
        return INSTRUCTION.format(named, places, page.goal)

    # Acting

    async def _perform(self, action: Action) -> None:
        assert self._tab is not None
        page = self._tab.page
        match action.verb:
            case "click":
                await page.mouse.click(*await self._point_of(action.target))
            case "hover":
                await page.mouse.move(*await self._point_of(action.target))
            case "type":
                await self._type(action)
            case "select":
                assert isinstance(action.target, Element)
                await self._call("choose", action.target.id, action.target.option)
            case "press":
                await self._press(action.text)
            case "scroll":
                element_id = action.target.id if isinstance(action.target, Element) else 0
                if not await self._call("scroll", element_id, 1 if action.text == "down" else -1):
                    raise ActionError(f"Nothing scrolls {action.text} there.")
            case "drag":
                await self._drag(action)

    async def _point_of(self, target: Target | None) -> tuple[float, float]:
        if isinstance(target, Point):
            return target.x, target.y
        assert target is not None
        spot = await self._call("locate", target.id)
        if spot is None:
            raise ActionError(f"{target.label[:40]} is no longer on the page.")
        return spot["x"], spot["y"]

    async def _type(self, action: Action) -> None:
        """Replaces what the field holds, key by key."""
        assert self._tab is not None
        page = self._tab.page
        if isinstance(action.target, Element) and action.target.role in NATIVE_PICKERS:
            if not await self._call("put", action.target.id, action.text):
                role = action.target.role
                raise ActionError(f"{action.text[:20]!r} is no {role}: write {_format(role)}.")
            return
        if action.target is not None:
            await page.mouse.click(*await self._point_of(action.target))
            await self._call("empty", action.target.id if isinstance(action.target, Element) else 0)
        if action.text:
            await page.keyboard.type(action.text)
        elif action.target is not None:
            await page.keyboard.press("Delete")

    async def _press(self, key: str) -> None:
        """Presses a key. The clipboard is the episode's own, because Chromium shares one among all contexts."""
        assert self._tab is not None
        keyboard, use = self._tab.page.keyboard, CLIPBOARD.get(key)
        if use is None:
            await keyboard.press(key)
        elif use == "paste":
            if self._clipboard:
                await keyboard.insert_text(self._clipboard)
        elif selected := await self._call("selected"):
            self._clipboard = selected
            if use == "cut":
                await keyboard.press("Delete")

    async def _drag(self, action: Action) -> None:
        assert self._tab is not None
        mouse = self._tab.page.mouse
        start = await self._point_of(action.target)
        end = await self._point_of(action.to)
        if isinstance(action.to, Element):  # a sortable list swaps only past the middle
            end = tuple(there + 3 * ((there > here) - (there < here)) for here, there in zip(start, end, strict=True))
        await mouse.move(*start)
        await mouse.down()
        await mouse.move(*end, steps=8)
        await mouse.up()


def _format(role: str) -> str:
    formats = {"date": "2016-12-31", "time": "14:05", "month": "2016-12", "week": "2016-W52", "color": "#ff0000"}
    return formats.get(role, "a number in its range")
