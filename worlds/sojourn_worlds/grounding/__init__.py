"""Grounding: say where on a rendered page something is; one turn.

Ours, after ScreenSpot (Cheng et al. 2024, SeeClick, arXiv:2401.10935), which it differs from in that no data is kept:
pages are rendered when they are asked about, from MiniWoB++, from the shop, or drawn from a seed, so there are as many
as one likes, and the boxes are exact. The rewards are in `rewards`.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from sojourn.config.registry import Range
from sojourn.envs.about import About, need
from sojourn.envs.chromium import executable, risks
from sojourn.envs.fields import Count, check_fields, check_names
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks.splits import in_turns
from sojourn.types import Message, Observation, Role, Step, Task
from sojourn_worlds.grounding.drawn import page
from sojourn_worlds.grounding.rewards import REWARDS, Box, difficulty
from sojourn_worlds.miniwob.browser import Chromium, Tab
from sojourn_worlds.miniwob.facts import html_folder, page_names

SOURCES = ("drawn", "miniwob", "shop")
SCREENS = {"drawn": (480, 320), "shop": (480, 320), "miniwob": (160, 210)}
ROLES = {"textbox": "text field", "password": "password field", "item": "", "image": "picture", "rect": "rectangle"}
SMALLEST = 6  # pixels, of a target's sides
BRIEF = "Say where on the screen of {0} x {1} pixels it is: {2}"
FORMS = {"point": "click(x, y)", "box": "box(left, top, right, bottom)"}
NAMELESS = frozenset({"line", "path", "polygon", "polyline", "canvas", "box"})  # what words do not describe well
MOVING = frozenset({"click-pie", "click-pie-nodelay", "moving-items", "chase-circle", "simon-says"})
TRIES = 20  # pages, until one has something to ask for


@dataclass(frozen=True)
class Screen:
    """A rendered page: its picture, and its elements as (description, box)."""

    picture: bytes
    elements: tuple[tuple[str, Box], ...]

    @property
    def unique(self) -> list[tuple[str, Box]]:
        """What only one description fits."""
        described = Counter(name for name, _ in self.elements)
        return [element for element in self.elements if described[element[0]] == 1]


@dataclass(eq=False)
class _Shared:
    chromium: Chromium | None = None
    site: Any = None


@dataclass(frozen=True, kw_only=True)
class Grounding:
    """Find an element on a rendered page, and answer with a point or a box.

    `sources` of pages, by turns. `observation`: "screenshot", "text" (a list of the elements with their boxes, for
    models without eyes) or "both". `answer`: "point" or "box". `reward`: "inside", "distance", "gaussian" or "sized",
    which needs boxes; success is the answer's centre within the target, whatever is paid. `contexts` bounds the pages
    that are rendered at once. Each answered turn tells its target's `difficulty`: a task alone cannot, as the box is
    known only once its page is rendered.
    """

    about: ClassVar[About] = About(
        source="ours, after ScreenSpot (Cheng et al. 2024, arXiv:2401.10935); pages of MiniWoB++ and of the shop",
        licence="Apache-2.0; the pages of the package `miniwob` are MIT",
        extra="grounding",
        programs={"chromium": "chromium"},
        sees=("image", "text"),
        easy={"sources": ("drawn",), "observation": "text", "contexts": 2},
    )

    sources: tuple[str, ...] = SOURCES
    observation: Literal["screenshot", "text", "both"] = "both"
    answer: Literal["point", "box"] = "point"
    reward: Literal["inside", "distance", "gaussian", "sized"] = "inside"
    contexts: Annotated[int, Range(1)] = 4
    chromium: str | None = None
    timeout_s: Annotated[float, Range(above=0)] = 30.0
    train: Count = 100_000
    test: Count = 1_000
    _shared: _Shared = field(default_factory=_Shared, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", tuple(self.sources))
        check_fields("grounding", self)
        check_names("grounding", "sources", self.sources, SOURCES)
        if self.reward == "sized" and self.answer != "box":
            raise ConfigError('grounding: reward "sized" judges boxes, but answer is "point": set answer = "box"')

    @property
    def capacity(self) -> int:
        """A play holds a page only while it starts; so many may do it at once without waiting."""
        return 4 * self.contexts

    def risks(self) -> tuple[str, ...]:
        """Which protections do not hold on this machine."""
        return risks()

    def tasks(self, split: str) -> Sequence[Task]:
        return in_turns("grounding", self, split, self.sources, lambda source: {"source": source})

    def make(self, task: Task) -> GroundingEnv:
        if self._shared.chromium is None:
            raise ConfigError("the grounding world is not open: `await family.open()` before making its envs")
        return GroundingEnv(self, task)

    async def open(self) -> None:
        """Launch Chromium, and stock the shop; once."""
        if self._shared.chromium is not None:
            return
        need("playwright", "sojourn-worlds[grounding]", "grounding")
        need("miniwob", "sojourn-worlds[grounding]", "grounding")
        if "shop" in self.sources:
            self._shared.site = await asyncio.to_thread(_site)
        program = executable(self.chromium)
        chromium = Chromium(program, self.contexts, html_folder())
        try:
            await chromium.open()
        except chromium.errors as error:
            await chromium.close()
            raise ConfigError(f"{program} does not start as Chromium: {str(error).splitlines()[0]}") from error
        self._shared.chromium = chromium

    async def close(self) -> None:
        chromium, self._shared.chromium = self._shared.chromium, None
        if chromium is not None:
            await chromium.close()

    async def render(self, task: Task) -> Screen:
        """The page of a task, in a tab that is given back at once."""
        chromium, source = self._shared.chromium, str(task.data["source"])
        if chromium is None:
            raise InfrastructureError("the grounding world is closed: open it again")
        tab = await chromium.acquire("")
        tab.reusable, tab.shows = False, ""
        try:
            async with asyncio.timeout(self.timeout_s):
                rng = random.Random(f"grounding page {task.seed}")
                for _ in range(TRIES):
                    screen = await self._render(tab, source, rng, chromium)
                    if screen.unique:
                        tab.reusable = True
                        return screen
            raise InfrastructureError(f"{TRIES} pages of {source} have nothing to ask for: leave it out of sources")
        except TimeoutError as error:
            raise InfrastructureError(f"a page was not rendered within {self.timeout_s} s") from error
        except chromium.errors as error:
            raise InfrastructureError(f"Chromium failed on a page: {str(error).splitlines()[0]}") from error
        finally:
            chromium.release(tab)

    async def _render(self, tab: Tab, source: str, rng: random.Random, chromium: Chromium) -> Screen:
        tab, (width, height) = tab.page, SCREENS[source]
        if source == "miniwob":
            name = rng.choice([name for name in page_names() if name not in MOVING])
            await tab.goto(f"{chromium.server.url}/miniwob/{name}.html")
            await tab.call("reset", str(rng.randrange(10**9)), 200, [], [], "text")
        else:
            await tab.goto("about:blank")
            html = page(rng) if source == "drawn" else self._shop_page(rng)
            await tab.evaluate("html => { document.open(); document.write(html); document.close(); }", html)
        await tab.mouse.move(490, 318)
        await tab.call("painted")
        entries = await tab.call("entries")
        picture = await tab.screenshot(clip={"x": 0, "y": 0, "width": width, "height": height})
        return Screen(picture, tuple(_elements(entries, width, height)))

    def _shop_page(self, rng: random.Random) -> str:
        from sojourn_worlds.shop.store import State

        product = rng.choice(self._shared.site.store.catalogue.products)
        state = State(product.kind, 1, product.id if rng.random() < 0.5 else "")
        return self._shared.site.html(state, "/s")


@dataclass
class GroundingEnv:
    """One question about one page. Once it is asked, it needs the browser no more, so it can be forked."""

    config: Grounding
    task: Task
    blobs: dict[str, bytes] = field(default_factory=dict)
    screen: Screen | None = None
    target: tuple[str, Box] | None = None
    over: bool = False

    async def start(self) -> Observation:
        screen = self.screen = await self.config.render(self.task)
        self.target = random.Random(f"grounding target {self.task.seed}").choice(screen.unique)
        width, height = SCREENS[str(self.task.data["source"])]
        brief = BRIEF.format(width, height, FORMS[self.config.answer])
        images: tuple[str, ...] = ()
        text = f"Find: {self.target[0]}"
        if self.config.observation != "screenshot":
            text = "\n".join([*(_line(*element) for element in screen.elements), text])
        if self.config.observation != "text":
            images = (hashlib.sha256(screen.picture).hexdigest(),)
            self.blobs[images[0]] = screen.picture
        return Observation((Message(Role.USER, text, images=images),), system=(Message(Role.SYSTEM, brief),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.over or self.target is None:
            raise InfrastructureError("a grounding question was answered before its start or twice: use each env once")
        screen = SCREENS[str(self.task.data["source"])]
        answer = read(action.text, self.config.answer, screen)
        self.over = True
        hit = REWARDS["inside"](answer, self.target[1], screen)
        paid = REWARDS[self.config.reward](answer, self.target[1], screen)
        return Step(
            None, {agent: paid}, done=True, success=hit > 0, info={"difficulty": difficulty(self.target[1], screen)}
        )

    async def close(self) -> None:
        pass

    async def fork(self) -> GroundingEnv:
        return GroundingEnv(self.config, self.task, dict(self.blobs), self.screen, self.target, self.over)

    def state_key(self) -> str:
        known = repr((self.task.data["source"], self.task.seed, self.target, self.over))
        return hashlib.sha256(known.encode()).hexdigest()[:16]

    def expert(self) -> str:
        if self.target is None:
            raise InfrastructureError("the grounding question is not asked yet: start it first")
        box = self.target[1]
        if self.config.answer == "box":
            return f"box({', '.join(f'{edge:g}' for edge in box)})"
        return "click({:g}, {:g})".format(*box.centre)


def read(said: str, form: str, screen: tuple[int, int]) -> Box:
    """The point or box that an answer names."""
    name, count = ("click", 2) if form == "point" else ("box", 4)
    found = re.fullmatch(rf"{name}\(([^()]*)\)", said.strip()) if len(said) < 200 else None
    words = [word.strip() for word in found[1].split(",")] if found else []
    if len(words) != count or not all(re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?", word) for word in words):
        raise ActionError(f"Say {FORMS[form]} with numbers.")
    numbers = [float(word) for word in words]
    box = Box(*numbers, *numbers) if form == "point" else Box(*numbers)
    if box.right > screen[0] or box.bottom > screen[1]:
        raise ActionError(f"That is outside of the screen of {screen[0]} x {screen[1]} pixels.")
    if form == "box" and (box.left >= box.right or box.top >= box.bottom):
        raise ActionError("A box has its left edge before its right one, and its top above its bottom.")
    return box


def _line(name: str, box: Box) -> str:
    return f"{name} {box.left:g},{box.top:g} {box.right:g},{box.bottom:g}"


def _elements(entries: Sequence[Mapping[str, Any]], width: int, height: int) -> list[tuple[str, Box]]:
    """What is wholly on the screen, large enough, and has a name; its centre is a whole number."""
    found = []
    for entry in entries:
        if entry["kind"] not in ("element", "shape") or not entry["name"] or entry["role"] in NAMELESS:
            continue
        x, y, w, h = (entry[key] for key in ("x", "y", "w", "h"))
        box = Box(x - w // 2, y - h // 2, x + w // 2, y + h // 2)
        if min(w, h) >= SMALLEST and box.left >= 0 and box.top >= 0 and box.right <= width and box.bottom <= height:
            found.append((" ".join(f"{entry['name']} {ROLES.get(entry['role'], entry['role'])}".split()), box))
    return found


def _site() -> Any:
    """The shop's pages, of a small catalogue."""
    need("starlette", "sojourn-worlds[grounding]", "grounding")
    from sojourn_worlds.shop.catalogue import generate
    from sojourn_worlds.shop.search import Index
    from sojourn_worlds.shop.store import Store
    from sojourn_worlds.shop.web import Site

    catalogue = generate(500, 0)
    return Site(Store(catalogue, Index(catalogue), 5))
