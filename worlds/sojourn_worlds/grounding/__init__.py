"""Grounding: the agent says where an element is on a rendered page, in one turn.

A task is a seed and a source of pages; the page and the target element follow from the seed. The observation is a
screenshot, a list of elements with their boxes, or both, and the description of the target; the action is a point or a
box. The episode ends after this one action, and the reward says how near the answer is (see `rewards`).

Ours, after ScreenSpot (Cheng et al. 2024, SeeClick, arXiv:2401.10935), which it differs from in that no data set is
kept: pages are rendered on demand, from MiniWoB++, from the shop, or drawn from a seed, so their number is unlimited,
and the boxes are exact.
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

from sojourn.config.fields import Range
from sojourn.envs.about import About, require_module
from sojourn.envs.chromium import risks
from sojourn.envs.fields import Count, check_fields, check_names
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks.splits import make_tasks_by_kind
from sojourn.types import Message, Observation, Role, Step, Task
from sojourn_worlds.grounding.drawn import draw_page
from sojourn_worlds.grounding.rewards import REWARDS, Box, difficulty
from sojourn_worlds.miniwob.browser import Chromium, Tab, open_chromium
from sojourn_worlds.miniwob.facts import page_names

SOURCES = ("drawn", "miniwob", "shop")
SCREENS = {"drawn": (480, 320), "shop": (480, 320), "miniwob": (160, 210)}
ROLES = {"textbox": "text field", "password": "password field", "item": "", "image": "picture", "rect": "rectangle"}
MIN_TARGET_PIXELS = 6  # of a target's sides
SYSTEM_PROMPT = "Say where on the screen of {0} x {1} pixels it is: {2}"
FORMS = {"point": "click(x, y)", "box": "box(left, top, right, bottom)"}
INDESCRIBABLE_ROLES = frozenset({"line", "path", "polygon", "polyline", "canvas", "box"})  # their names say too little
MOVING = frozenset({"click-pie", "click-pie-nodelay", "moving-items", "chase-circle", "simon-says"})
MAX_PAGES_TRIED = 20  # until one has an element that can be asked for


@dataclass(frozen=True)
class Screen:
    """A rendered page: its image, and its elements as (description, box)."""

    image: bytes
    elements: tuple[tuple[str, Box], ...]

    @property
    def unique(self) -> list[tuple[str, Box]]:
        """Returns the elements whose description fits no other element."""
        described = Counter(name for name, _ in self.elements)
        return [element for element in self.elements if described[element[0]] == 1]


@dataclass(eq=False)
class _Shared:
    chromium: Chromium | None = None
    site: Any = None


@dataclass(frozen=True, kw_only=True)
class Grounding:
    """Finding an element on a rendered page, where the answer is a point or a box.

    `sources` of pages, which take turns. `observation`: "screenshot", "text" (a list of the elements with their boxes,
    for models without vision) or "both". `answer`: "point" or "box". `reward`: "inside", "distance", "gaussian" or
    "sized", which needs boxes; an episode is a success when the answer's centre lies within the target, whatever the
    reward. `contexts` bounds the pages that are rendered at once. Each answered turn tells its target's `difficulty` in
    the info: a task alone cannot, as the box is known only once its page is rendered.
    """

    about: ClassVar[About] = About(
        source="ours, after ScreenSpot (Cheng et al. 2024, arXiv:2401.10935); pages of MiniWoB++ and of the shop",
        licence="Apache-2.0; the pages of the package `miniwob` are MIT",
        extra="grounding",
        programs={"chromium": "chromium-headless-shell, or chromium"},
        modalities=("image", "text"),
        smallest={"sources": ("drawn",), "observation": "text", "contexts": 2},
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
        """Bounds the concurrent episodes: an episode holds a tab only while it starts, so there may be more of them
        than tabs.
        """
        return 4 * self.contexts

    def risks(self) -> tuple[str, ...]:
        """Returns which protections do not hold on this machine."""
        return risks()

    def tasks(self, split: str) -> Sequence[Task]:
        return make_tasks_by_kind("grounding", self, split, self.sources, lambda source: {"source": source})

    def make(self, task: Task) -> GroundingEnv:
        if self._shared.chromium is None:
            raise ConfigError("the grounding world is not open: `await family.open()` before making its envs")
        return GroundingEnv(self, task)

    async def open(self) -> None:
        """Launches Chromium, and makes the shop's catalogue, once."""
        if self._shared.chromium is not None:
            return
        require_module("playwright", "sojourn-worlds[grounding]", "grounding")
        require_module("miniwob", "sojourn-worlds[grounding]", "grounding")
        if "shop" in self.sources:
            self._shared.site = await asyncio.to_thread(_open_shop_site)
        self._shared.chromium = await open_chromium(self.chromium, self.contexts)

    async def close(self) -> None:
        chromium, self._shared.chromium = self._shared.chromium, None
        if chromium is not None:
            await chromium.close()

    async def render(self, task: Task) -> Screen:
        """Renders the page of a task, in a tab that is given back at once."""
        chromium, source = self._shared.chromium, str(task.data["source"])
        if chromium is None:
            raise InfrastructureError("the grounding world is closed: open it again")
        tab = await chromium.acquire("")
        tab.reusable = False
        try:
            async with asyncio.timeout(self.timeout_s):
                rng = random.Random(f"grounding page {task.seed}")
                for _ in range(MAX_PAGES_TRIED):
                    screen = await self._render(tab, source, rng, chromium)
                    if screen.unique:
                        tab.reusable = True
                        return screen
            raise InfrastructureError(
                f"{MAX_PAGES_TRIED} pages of {source} have nothing to ask for: leave it out of sources"
            )
        except TimeoutError as error:
            raise InfrastructureError(f"a page was not rendered within {self.timeout_s} s") from error
        except chromium.errors as error:
            raise InfrastructureError(f"Chromium failed on a page: {str(error).splitlines()[0]}") from error
        finally:
            chromium.release(tab)

    async def _render(self, tab: Tab, source: str, rng: random.Random, chromium: Chromium) -> Screen:
        width, height = SCREENS[source]
        if source == "miniwob":
            name = rng.choice([name for name in page_names() if name not in MOVING])
            await tab.load(f"{chromium.server.url}/miniwob/{name}.html")
            await tab.call("reset", str(rng.randrange(10**9)), 200, [], [], "text")
        else:
            await tab.load("about:blank")
            html = draw_page(rng) if source == "drawn" else self._shop_page(rng)
            await tab.page.evaluate("html => { document.open(); document.write(html); document.close(); }", html)
        await tab.page.mouse.move(490, 318)
        await tab.call("pictured")
        entries = await tab.call("entries")
        image = await tab.page.screenshot(clip={"x": 0, "y": 0, "width": width, "height": height})
        return Screen(image, tuple(_elements(entries, width, height)))

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
    done: bool = False

    async def start(self) -> Observation:
        screen = self.screen = await self.config.render(self.task)
        self.target = random.Random(f"grounding target {self.task.seed}").choice(screen.unique)
        width, height = SCREENS[str(self.task.data["source"])]
        system = SYSTEM_PROMPT.format(width, height, FORMS[self.config.answer])
        images: tuple[str, ...] = ()
        text = f"Find: {self.target[0]}"
        if self.config.observation != "screenshot":
            text = "\n".join([*(_line(*element) for element in screen.elements), text])
        if self.config.observation != "text":
            images = (hashlib.sha256(screen.image).hexdigest(),)
            self.blobs[images[0]] = screen.image
        return Observation((Message(Role.USER, text, images=images),), system=(Message(Role.SYSTEM, system),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done or self.target is None:
            raise InfrastructureError("a grounding question was answered before its start or twice: use each env once")
        screen = SCREENS[str(self.task.data["source"])]
        answer = parse(action.text, self.config.answer, screen)
        self.done = True
        hit = REWARDS["inside"](answer, self.target[1], screen)
        reward = REWARDS[self.config.reward](answer, self.target[1], screen)
        return Step(
            None, {agent: reward}, done=True, success=hit > 0, info={"difficulty": difficulty(self.target[1], screen)}
        )

    async def close(self) -> None:
        pass

    async def fork(self) -> GroundingEnv:
        return GroundingEnv(self.config, self.task, dict(self.blobs), self.screen, self.target, self.done)

    def state_key(self) -> str:
        known = repr((self.task.data["source"], self.task.seed, self.target, self.done))
        return hashlib.sha256(known.encode()).hexdigest()[:16]

    def expert(self) -> str:
        if self.target is None:
            raise InfrastructureError("the grounding question is not asked yet: start it first")
        box = self.target[1]
        if self.config.answer == "box":
            return f"box({', '.join(f'{edge:g}' for edge in box)})"
        return "click({:g}, {:g})".format(*box.centre)


def parse(text: str, form: str, screen: tuple[int, int]) -> Box:
    """Returns the point or box that an answer names; a point is a box without extent."""
    name, count = ("click", 2) if form == "point" else ("box", 4)
    match = re.fullmatch(rf"{name}\(([^()]*)\)", text.strip()) if len(text) < 200 else None
    words = [word.strip() for word in match[1].split(",")] if match else []
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
    """Returns the elements that are wholly on the screen, large enough and named; their centres are whole numbers."""
    elements = []
    for entry in entries:
        if entry["kind"] not in ("element", "shape") or not entry["name"] or entry["role"] in INDESCRIBABLE_ROLES:
            continue
        x, y, w, h = (entry[key] for key in ("x", "y", "w", "h"))
        box = Box(x - w // 2, y - h // 2, x + w // 2, y + h // 2)
        if (
            min(w, h) >= MIN_TARGET_PIXELS
            and box.left >= 0
            and box.top >= 0
            and box.right <= width
            and box.bottom <= height
        ):
            elements.append((" ".join(f"{entry['name']} {ROLES.get(entry['role'], entry['role'])}".split()), box))
    return elements


def _open_shop_site() -> Any:
    """Returns the shop's web site, with a small catalogue."""
    require_module("starlette", "sojourn-worlds[grounding]", "grounding")
    from sojourn_worlds.shop.catalogue import generate
    from sojourn_worlds.shop.search import Index
    from sojourn_worlds.shop.store import Store
    from sojourn_worlds.shop.web import Site

    catalogue = generate(500, 0)
    return Site(Store(catalogue, Index(catalogue), 5))
