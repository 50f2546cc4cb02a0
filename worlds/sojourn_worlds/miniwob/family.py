"""MiniWoB++: 130 small web tasks in Chromium (Shi et al. 2017; Liu et al. 2018, arXiv:1802.08802; package `miniwob`).

A task is a page and a seed, which decides what the page asks for. An action is one line such as `click Ok`, which
becomes real mouse and keyboard events (`actions`); an observation is the page as text or as a screenshot (`page`). The
reward is the page's raw reward, paid when the page ends the episode; an episode also ends, with reward 0, after `turns`
actions.

It differs from the package's own environment: the raw reward in [-1, 1] is paid without its discount by time; time
passes by steps (`step_s` of page time each) instead of by the wall clock, so an episode never times out; and the page
is shown as text and acted on by name. `success` is `raw > 0`, as is usual for this benchmark: on the pages in
`facts.PARTIAL` it includes answers that are only partly right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sojourn.envs.about import About
from sojourn.envs.chromium import risks
from sojourn.errors import ConfigError
from sojourn.tasks import Generated
from sojourn.tasks.splits import FIRST_TEST, first_seed
from sojourn.types import Task
from sojourn_worlds.miniwob.browser import Chromium, open_chromium
from sojourn_worlds.miniwob.facts import expand_pages
from sojourn_worlds.miniwob.families import family_of
from sojourn_worlds.miniwob.visit import Visit

OBSERVATIONS = ("text", "aria", "dom", "screenshot")


@dataclass(eq=False)
class _Shared:
    """The browser that all copies of a family share: `open` makes it, `close` ends it."""

    chromium: Chromium | None = None


@dataclass(frozen=True, kw_only=True)
class MiniWoB:
    """MiniWoB++ pages in Chromium, round-robin: task i is page i % len(pages), and its seed decides what is asked.

    `pages` are names of pages and of families of them (`FAMILIES`: "email", "drag", ...), or "experts": those with an
    expert policy, or "published": the 56 over which results of others are published. `observation`: "text" (a line
    per element), "aria" (the accessibility tree), "dom" (the page's own DOM reading) or "screenshot" (no text).
    `refs`: elements are called by "name" or by "number"; the DOM has numbers only, and the tree and the screenshot
    have none. `marks` draws the numbers and boxes of the elements into the screenshot, so that `click 7` works there
    too (set of marks: Yang et al. 2023, arXiv:2310.11441; theirs come from a segmentation of the image, ours from the
    page). `turns` is the largest number of actions; an episode that reaches it ends with reward 0. `contexts` bounds
    the number of concurrent episodes; more have to wait. `loaded` bounds the number of task pages that stay loaded in
    them, of about 7 MB each: to load one again takes several times as long as to reset it. `choices` offers every
    click and select as a choice (nothing can be typed then). `filler` also shows plain text that is known to be random
    words. `longest` truncates an observation, in characters. A few pages do not vary with the seed (click-dialog,
    simon-says, ...), and the pages' generator treats a seed with repeated digits (22, 222) like the digit alone (2).
    Chromium draws a few edge pixels of a screenshot differently from time to time; all other observations are the same
    in every run.
    """

    about: ClassVar[About] = About(
        source="MiniWoB++ (Shi et al. 2017; Liu et al. 2018, arXiv:1802.08802), the pages of the package `miniwob`",
        licence="MIT",
        extra="miniwob",
        text_actions=('type "{}"',),
        submit_actions=("press Enter",),
        programs={"chromium": "chromium-headless-shell, or chromium"},
        modalities=("text", "image"),
        smallest={"pages": ("click-tab-2",), "contexts": 2},
    )

    pages: tuple[str, ...] = ()
    observation: str = "text"
    refs: str = "name"
    marks: bool = False
    turns: int = 50
    contexts: int = 8
    loaded: int = 128
    chromium: str | None = None
    train_seeds: int = 10_000
    test_seeds: int = 100
    step_s: float = 1.0
    timeout_s: float = 30.0
    longest: int = 6000
    filler: bool = False
    choices: bool = False
    _shared: _Shared = field(default_factory=_Shared, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pages", expand_pages(tuple(self.pages)))
        if self.observation not in OBSERVATIONS:
            raise ConfigError(f"observation {self.observation!r} is unknown: use one of {', '.join(OBSERVATIONS)}")
        if self.marks and self.observation != "screenshot":
            raise ConfigError(f"marks cannot be drawn into observation {self.observation!r}: use screenshot")
        allowed = {"text": ("name", "number"), "dom": ("number",)}.get(self.observation, ("name",))
        allowed = ("number",) if self.marks else allowed
        if self.refs not in allowed:
            raise ConfigError(f"refs {self.refs!r} cannot be used with observation {self.observation!r}: use {allowed}")
        for name in ("turns", "contexts", "loaded", "train_seeds", "test_seeds", "step_s", "timeout_s", "longest"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"miniwob {name} is {getattr(self, name)}: it must be above 0")
        if self.train_seeds > FIRST_TEST:
            raise ConfigError(f"miniwob train_seeds is {self.train_seeds}: it must be at most {FIRST_TEST}")

    @property
    def capacity(self) -> int:
        """Returns the number of browser contexts: further episodes would only wait."""
        return self.contexts

    def next_task(self, waiting: Sequence[Task]) -> int:
        """Returns the number of the first task whose page is loaded where nobody plays."""
        chromium = self._shared.chromium
        return chromium.first_loaded([str(task.data["page"]) for task in waiting]) if chromium else 0

    def risks(self) -> tuple[str, ...]:
        """Returns which protections do not hold on this machine."""
        return risks()

    def tasks(self, split: str) -> Generated:
        """Returns the tasks of "train" or "test"; the pages take turns, and each seed is used once per page."""
        start = first_seed("miniwob", split)
        seeds = self.train_seeds if split == "train" else self.test_seeds

        def make(index: int) -> Task:
            seed, which = divmod(index, len(self.pages))
            page = self.pages[which]
            return Task("miniwob", {"page": page}, seed=start + seed, split=split, tags=(page, family_of(page)))

        return Generated(make, len(self.pages) * seeds)

    def make(self, task: Task) -> Visit:
        if self._shared.chromium is None:
            raise ConfigError("the miniwob world is not open: `await family.open()` before making its envs")
        return Visit(self, task, self._shared.chromium)

    async def open(self) -> None:
        """Serves the pages and launches Chromium, once."""
        if self._shared.chromium is None:
            self._shared.chromium = await open_chromium(self.chromium, self.contexts, self.loaded)

    async def close(self) -> None:
        chromium, self._shared.chromium = self._shared.chromium, None
        if chromium is not None:
            await chromium.close()
