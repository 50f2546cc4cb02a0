"""A shop after WebShop (Yao et al. 2022, arXiv:2207.01206): find a product by search, choose its options, buy it.

A task is a sentence that asks for a product with attributes, options and a price limit. An action is `search[words]` or
`click[name]`; an observation is the page that it leads to, as text (`text`) or from a real web site in a real browser
(`browser`), which an agent may also drive itself (`cdp`). Buying ends the episode, with a reward in [0, 1] that grades
how well the product fits (`reward`); there is no limit of turns here.

It differs from WebShop in that the catalogue and the goals are generated (or read from WebShop's own files, see
`original`), the search is SQLite's full-text search, and pages are shorter (see `catalogue`, `search`, `store`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from sojourn.envs.about import About
from sojourn.envs.chromium import find_chromium, risks
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.envs.sandbox.command import require_sandbox
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.protocols import Env
from sojourn.tasks import Generated
from sojourn.tasks.splits import first_seed
from sojourn.types import Episode, Task
from sojourn_worlds.shop.goals import goal_of_purchase, make_goal, seed_of, split_of
from sojourn_worlds.shop.original import Original, find_products_file, load
from sojourn_worlds.shop.original import make_goal as make_original_goal
from sojourn_worlds.shop.reward import Goal
from sojourn_worlds.shop.store import Store, open_store
from sojourn_worlds.shop.text import TextPlay

if TYPE_CHECKING:
    from sojourn_worlds.shop.browser import Browser

DIFFICULTY = ("attributes", "options", "price_limit", "hidden")


@dataclass
class _Opened:
    """Holds what `Shop.open` shares among all episodes of the web surface."""

    browser: Browser | None = None
    uses: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, kw_only=True)
class Shop:
    """Shopping goals in one shop: find what is asked for by search, choose its options, buy it.

    The defaults are hard; `products=200, attributes=1, options=0, price_limit=False, results_per_page=3` is easy:
    search, open the first result that has the attribute in its title, buy.

    `products` are generated from `catalogue_seed`, or are the first so many of WebShop's own `data` (a products file,
    or a folder with one), whose instructions then are the goals; the seed then decides their order and prices. A goal
    asks for `attributes` (at most two of them named in titles, none where `hidden`), `options` and a `price_limit`.
    `surface` is "text", or "web": the same pages as a site on loopback, in Chromium (needs `open`); or "cdp", where a
    program drives a Chromium of its episode's own (`agent` "program"). `choices` lists what can be clicked in every
    observation, and nothing on the search page, where words are free.
    """

    about: ClassVar[About] = About(
        source="ours, after WebShop (Yao et al. 2022, arXiv:2207.01206); the catalogue is generated",
        licence="Apache-2.0",  # the web surface alone needs an extra, 'shop', and Chromium
        smallest={"products": 200, "attributes": 1, "options": 0, "price_limit": False, "results_per_page": 3},
    )

    products: int = 10_000
    catalogue_seed: int = 0
    data: str | None = None
    results_per_page: int = 5
    surface: Literal["text", "web", "cdp"] = "text"
    attributes: int = 2
    options: int = 2
    price_limit: bool = True
    hidden: bool = False
    choices: bool = False
    train: int = 100_000
    test: int = 500
    _opened: _Opened = field(default_factory=_Opened, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        limits = {
            "products": (1 if self.data else 100, 10_000_000),
            "results_per_page": (1, 50),
            "attributes": (0, 3 if self.hidden else 5),
            "options": (0, 2),
            **SIZES,
        }
        require_within("shop", self, limits)
        require_one_of("shop", self, {"surface": ("text", "web", "cdp")})
        if self.choices and self.surface == "cdp":
            raise ConfigError('shop: surface "cdp" shows no choices, as its pages are in a browser: leave choices out')
        if self.data is not None and (self.attributes, self.options, self.hidden) != (2, 2, False):
            raise ConfigError(
                "shop: attributes, options and hidden shape generated goals only: leave them out with data"
            )

    def risks(self) -> tuple[str, ...]:
        """Returns which protections do not hold on this machine: those of the web surface's browser."""
        return risks() if self.surface == "web" else ()

    @property
    def browser_only(self) -> bool:
        """Returns whether an episode is acted in by its browser alone."""
        return self.surface == "cdp"

    def tasks(self, split: str) -> Sequence[Task]:
        first_seed("shop", split)
        if self.data is not None:
            return self._original_tasks(split, self.data)
        size = self.train if split == "train" else self.test
        data = {"products": self.products, "catalogue": self.catalogue_seed}
        data |= {name: getattr(self, name) for name in DIFFICULTY}
        return Generated(lambda index: Task("shop", data, seed_of(split, index), split), size)

    def make(self, task: Task) -> Env:
        store, goal = self.store, self.goal(task)
        if self.surface == "text":
            return TextPlay(store, goal, key=task.id, choices=self.choices)
        if self.surface == "cdp":
            from sojourn_worlds.shop.cdp import CdpPlay

            return CdpPlay(store, goal, task.id)
        if self._opened.browser is None:
            raise InfrastructureError("shop: surface 'web' has no browser yet: await the family's open() before make()")
        return self._opened.browser.play(goal, key=task.id, choices=self.choices)

    async def open(self) -> None:
        """Starts the site and the browser of the web surface; may be called again, where each call needs its
        `close`. Raises `ConfigError` where a browser cannot have a sandbox of its own, and the surface needs it."""
        if self.surface == "cdp":
            require_sandbox("shop, with surface 'cdp',")
            find_chromium()
        if self.surface == "web":
            async with self._opened.lock:
                if self._opened.browser is None:
                    from sojourn_worlds.shop.browser import Browser

                    self._opened.browser = await Browser.open(self.store)
                self._opened.uses += 1

    async def close(self) -> None:
        async with self._opened.lock:
            self._opened.uses = max(0, self._opened.uses - 1)
            if self._opened.uses == 0 and self._opened.browser is not None:
                browser, self._opened.browser = self._opened.browser, None
                await browser.close()

    @property
    def store(self) -> Store:
        """Returns the shop itself, which all episodes of the process share."""
        file = find_products_file(self.data) if self.data is not None else None
        return open_store(self.products, self.catalogue_seed, file, self.results_per_page)

    def goal(self, task: Task) -> Goal:
        """Returns the goal of a task."""
        mine = {"products": self.products, "catalogue": self.catalogue_seed}
        theirs = {name: task.data.get(name) for name in mine}
        if mine != theirs or (self.data is None) != ("wish" not in task.data):
            raise ConfigError(
                f"shop: task {task.id} belongs to the shop {theirs}, but this one is {mine}: use the task's own config"
            )
        if self.data is not None:
            return make_original_goal(
                self._original(self.data), task.data["wish"], task.seed, priced=task.data["price_limit"]
            )
        made = goal_of_purchase if "bought" in task.data else make_goal
        return made(self.store.catalogue, task.seed, task.data)

    def relabelled(self, episode: Episode) -> Sequence[Task]:
        """Returns the task that asks for what an episode bought; none where that is a target of the other split, or
        where the goals are WebShop's own sentences."""
        if self.browser_only:  # what was said are no actions
            return []
        task, [trajectory] = episode.task, episode.trajectories
        texts = (turn.message.text for turn in trajectory.turns if turn.message is not None)
        state = self.store.purchase(texts) if self.data is None else None
        if state is None:
            return []
        product = self.store.catalogue.by_id[state.product]
        if split_of(self.store.catalogue, product) != task.split:
            return []
        bought = {"product": product.id, "options": dict(state.chosen)}
        return [replace(task, data={**task.data, "bought": bought})]

    def _original(self, data: str) -> Original:
        return load(find_products_file(data), self.products, self.catalogue_seed)

    def _original_tasks(self, split: str, data: str) -> Sequence[Task]:
        """Splits the shuffled instructions: the first are "test", at most half of them; WebShop holds out the first
        500.
        """
        count = len(self._original(data).wishes)
        tested = min(self.test, count // 2)
        first, size = (0, tested) if split == "test" else (tested, min(self.train, count - tested))
        shared = {"products": self.products, "catalogue": self.catalogue_seed, "price_limit": self.price_limit}
        return Generated(lambda index: Task("shop", shared | {"wish": first + index}, first + index, split), size)
