"""One episode on one page: the agent's actions become real mouse and keyboard events in Chromium.

A step costs one evaluation that finds the element, the events, and one evaluation that moves the clock, reads the
page and its reward. The reward is the page's raw one, without the discount by time; it is read only when the page has
ended the episode, and never shown.

Whatever goes wrong with the page after an action (it hangs, crashes, is emptied, goes elsewhere) is the action's doing:
the play is lost, at the lowest reward. Only a browser that fails as a whole, and a page that fails before the first
action, are failures of the infrastructure.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

from sojourn.errors import ActionError, InfrastructureError
from sojourn.types import Message, Observation, Role, Step, Task
from sojourn_worlds.miniwob.actions import Action, Point, Target, parse
from sojourn_worlds.miniwob.browser import Chromium, Seat
from sojourn_worlds.miniwob.experts import expert_of
from sojourn_worlds.miniwob.facts import FILLER, RESETTABLE
from sojourn_worlds.miniwob.page import Element, Page, Reading, choices

NEUTRAL = (400, 300)  # where the mouse rests before an episode: beside the task and its display
START_MS = 200  # page time before the first observation, for what a page draws with a timer
TYPED = frozenset({"date", "time", "month", "week", "color", "slider"})  # native pickers: their value is set as a whole
INSTRUCTION = (
    'Reply with one action: click {0}, type {0} "text", select {0}, press KEY, scroll down, wait{1}.\nTask: {2}'
)
PLACES = ", click x,y, drag {0} to x,y, hover {0}"
LOST = -1.0  # the lowest reward of any page
CLIPBOARD = {"Control+C": "copy", "Control+X": "cut", "Control+V": "paste"}


class PageError(InfrastructureError):
    """The page or its browser failed; which of them, `Visit.step` finds out."""


class Settings(Protocol):
    """What a visit needs of the world's config; `MiniWoB` says what each is."""

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
    """The `Env`. `blobs` holds the screenshots that messages name, PNG bytes by SHA-256."""

    def __init__(self, config: Settings, task: Task, chromium: Chromium) -> None:
        self.task = task
        self.blobs: dict[str, bytes] = {}
        self._config = config
        self._name = str(task.data["page"])
        self._chromium = chromium
        self._seat: Seat | None = None
        self._page: Page | None = None
        self._picture = ""
        self._clipboard = ""
        self._counted = self._refused = 0  # refusals: by the page itself, and all that were reported
        self._past: tuple[str, ...] = ()
        self._resettable = (
            self._name in RESETTABLE and config.observation != "screenshot"
        )  # hover and focus leave traces
        self._reading = Reading(
            refs=config.refs, filler=config.filler or self._name not in FILLER, longest=config.longest
        )

    async def start(self) -> Observation:
        self._seat = await self._chromium.seat(self._name)
        async with self._world() as seat:
            server = self._chromium.server
            if seat.shows != self._name or not self._resettable:
                await seat.goto(f"{server.url}/miniwob/{self._name}.html")
                seat.shows = self._name
            await seat.page.mouse.move(*NEUTRAL)
            policy = server.policy(self._name)
            self._page = await self._read("reset", str(self.task.seed), START_MS, policy.payers, policy.known)
            if self._info(seat):
                raise PageError(f"{self._name} did not start clean: something that it asked for was refused")
            return await self._observation(first=True)

    async def step(self, agent: str, action: Message) -> Step:
        """Raises `ActionError` for what cannot be done here, and `InfrastructureError` where the whole browser failed.

        `info` counts what was "refused" (script, requests, popups ...) since the last step.
        """
        wanted = parse(action.text, self._now())
        try:
            return await self._acted(agent, wanted, action.text.strip())
        except PageError:
            seat = self._seat
            if seat is None or await self._chromium.failed_itself(seat):
                raise
            self._page = replace(self._now(), done=True)
            return Step(None, {agent: LOST}, done=True, success=False, info={"lost": 1.0, **self._info(seat)})

    async def _acted(self, agent: str, wanted: Action, said: str) -> Step:
        async with self._world() as seat:
            await self._perform(wanted)
            self._past += (said,)
            page = self._page = await self._read("after", round(self._config.step_s * 1000))
            info = self._info(seat)
            if page.done:
                return Step(None, {agent: page.raw}, done=True, success=page.raw > 0, info=info)
            if len(self._past) >= self._config.turns:
                self._page = replace(page, done=True)
                return Step(None, {agent: 0.0}, done=True, success=False, info=info)
            return Step(await self._observation(first=False), info=info)

    async def close(self) -> None:
        if self._seat is not None:
            seat, self._seat = self._seat, None
            self._chromium.leave(seat)

    @property
    def expert(self) -> Callable[[], Awaitable[str]]:
        """`await env.expert()` is the next action; raises `NoExpertError` on a page that has no expert."""
        choose = expert_of(self._name)

        async def say() -> str:
            page = self._now()
            if self._config.observation == "dom":
                page = await self._as_text(page)
            return choose(replace(page, past=self._past))

        return say

    async def _as_text(self, page: Page) -> Page:
        """The page as text, for an expert, with the labels of its DOM reading."""
        async with self._world():
            shown = self._reading(await self._call("read", "text"))
            await self._call("read", "dom")  # what it shows is what can be acted on
        labels = {(element.id, element.option): element.label for element in page.elements}
        known = {e: replace(e, label=labels.get((e.id, e.option), e.label)) for e in shown.elements}
        order = tuple(known[part] if isinstance(part, Element) else part for part in shown.order)
        return replace(shown, elements=tuple(known.values()), order=order)

    def state_key(self) -> str:
        """A hash of the page as text (of its tree or DOM, where that is shown); not of a screenshot."""
        text = self._page.text if self._page and not self._page.done else ""
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _now(self) -> Page:
        if self._page is None or self._page.done:
            raise ValueError("this visit is not under way: `start` it first, and use a new one after it is done")
        return self._page

    @asynccontextmanager
    async def _world(self) -> AsyncIterator[Seat]:
        """What goes wrong in the browser is a `PageError`, and the seat is not used again."""
        seat = self._seat
        if seat is None:
            raise ValueError("this visit is closed: make a new one")
        seat.sound = False
        try:
            async with asyncio.timeout(self._config.timeout_s):
                yield seat
        except ActionError:
            seat.sound = True
            raise
        except TimeoutError as error:
            raise PageError(f"{self._name} gave no answer within {self._config.timeout_s} s") from error
        except self._chromium.errors as error:
            raise PageError(f"Chromium failed on {self._name}: {str(error).splitlines()[0]}") from error
        seat.sound = True

    # Reading

    async def _call(self, function: str, *arguments: Any) -> Any:
        assert self._seat is not None
        return await self._seat.call(function, *arguments)

    def _info(self, seat: Seat) -> dict[str, float]:
        """Counts what was refused since the last time; a seat in which something was is not used again."""
        refused = self._counted + seat.wall.refused
        new, self._refused = refused - self._refused, refused
        seat.tainted = seat.tainted or new > 0
        return {"refused": float(new)} if new else {}

    async def _read(self, function: str, *arguments: Any) -> Page:
        report = await self._call(function, *arguments, "dom" if self._config.observation == "dom" else "text")
        self._counted = report["refused"]
        if report["done"] or self._config.observation in ("text", "dom"):
            return self._reading(report)
        assert self._seat is not None
        reading = self._reading(report)
        if self._config.observation == "aria":
            return self._reading(report, await self._seat.page.locator("body").aria_snapshot() or "(empty page)")
        if self._config.marks:
            await self._call("mark", [[e.id, e.label] for e in reading.elements if e.option < 0])
        await self._call("painted")
        picture = await self._seat.page.screenshot(clip={"x": 0, "y": 0, "width": 160, "height": 210})
        self._picture = hashlib.sha256(picture).hexdigest()
        self.blobs[self._picture] = picture
        if self._config.marks:
            await self._call("mark", [])
        return reading

    async def _observation(self, *, first: bool) -> Observation:
        page = self._now()
        seen = Message(Role.USER, page.text)
        if self._config.observation == "screenshot":
            options = "\n".join(line for line in page.text.splitlines() if line.startswith("options "))
            seen = Message(Role.USER, options if self._config.marks else "", images=(self._picture,))
        return Observation(
            messages=(seen,),
            system=(Message(Role.SYSTEM, self._brief(page)),) if first else (),
            choices=choices(page) if self._config.choices else (),
        )

    def _brief(self, page: Page) -> str:
        named = "NAME" if self._config.refs == "name" else "NUMBER"
        drawn = self._config.observation == "screenshot" or any(
            re.fullmatch(r"\d+,\d+", element.label) for element in page.elements
        )
        places = PLACES.format(named) if drawn or "drag" in self._name else ""
        return INSTRUCTION.format(named, places, page.goal)

    # Acting

    async def _perform(self, action: Action) -> None:
        assert self._seat is not None
        page = self._seat.page
        match action.verb:
            case "click":
                await page.mouse.click(*await self._where(action.target))
            case "hover":
                await page.mouse.move(*await self._where(action.target))
            case "type":
                await self._type(action)
            case "select":
                assert isinstance(action.target, Element)
                await self._call("choose", action.target.id, action.target.option)
            case "press":
                await self._press(action.text)
            case "scroll":
                wanted = action.target.id if isinstance(action.target, Element) else 0
                if not await self._call("scroll", wanted, 1 if action.text == "down" else -1):
                    raise ActionError(f"Nothing scrolls {action.text} there.")
            case "drag":
                await self._drag(action)

    async def _where(self, target: Target | None) -> tuple[float, float]:
        if isinstance(target, Point):
            return target.x, target.y
        assert target is not None
        spot = await self._call("locate", target.id)
        if spot is None:
            raise ActionError(f"{target.label[:40]} is no longer on the page.")
        return spot["x"], spot["y"]

    async def _type(self, action: Action) -> None:
        """Replace what the field holds, key by key."""
        assert self._seat is not None
        page = self._seat.page
        if isinstance(action.target, Element) and action.target.role in TYPED:
            if not await self._call("put", action.target.id, action.text):
                role = action.target.role
                raise ActionError(f"{action.text[:20]!r} is no {role}: write {_format(role)}.")
            return
        if action.target is not None:
            await page.mouse.click(*await self._where(action.target))
            await self._call("empty", action.target.id if isinstance(action.target, Element) else 0)
        if action.text:
            await page.keyboard.type(action.text)
        elif action.target is not None:
            await page.keyboard.press("Delete")

    async def _press(self, key: str) -> None:
        """Press a key; the clipboard is the episode's own, because Chromium shares one among all contexts."""
        assert self._seat is not None
        keyboard, use = self._seat.page.keyboard, CLIPBOARD.get(key)
        if use is None:
            await keyboard.press(key)
        elif use == "paste":
            if self._clipboard:
                await keyboard.insert_text(self._clipboard)
        else:
            self._clipboard = await self._call("selected")
            if use == "cut":
                await keyboard.press("Delete")

    async def _drag(self, action: Action) -> None:
        assert self._seat is not None
        mouse = self._seat.page.mouse
        start = await self._where(action.target)
        end = await self._where(action.to)
        if isinstance(action.to, Element):  # a sortable list swaps only past the middle
            end = tuple(there + 3 * ((there > here) - (there < here)) for here, there in zip(start, end, strict=True))
        await mouse.move(*start)
        await mouse.down()
        await mouse.move(*end, steps=8)
        await mouse.up()


def _format(role: str) -> str:
    formats = {"date": "2016-12-31", "time": "14:05", "month": "2016-12", "week": "2016-W52", "color": "#ff0000"}
    return formats.get(role, "a number in its range")
