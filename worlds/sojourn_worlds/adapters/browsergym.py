"""Environments of BrowserGym (Le Sellier De Chezelles et al. 2024, arXiv:2412.05467), in an interpreter of their own.

A task is an environment id and a seed. An action is a call of BrowserGym's action set; an observation is the goal and
the page's accessibility tree as text. Rewards are the environment's, times `scale`, and the episode ends when the
environment says so, or after `turns` actions.

Its pins (Playwright 1.44) rule out installing it beside newer packages. It differs from its defaults: no waiting
between actions (`slow_mo`, `pre_observation_delay`), one action per turn, and what does not parse as an action is
refused. An episode's Python and browsers are its own: once an agent has acted, whatever ends or stalls them is
attributed to the agent, and the episode ends with the worst reward.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.calls import LONGEST_ACTION, settled
from sojourn.envs.chromium import risks
from sojourn.envs.fields import SIZES, require_within
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks import Generated
from sojourn.tasks.splits import first_seed
from sojourn.types import Message, Observation, Role, Step, Task
from sojourn_worlds.adapters.child import Child, Interpreter
from sojourn_worlds.adapters.hooks import called

OPEN = (
    "Pages that BrowserGym opens may reach every address that this machine can, loopback included, and its own MiniWoB "
    "pages run what an agent types as script: use the world `miniwob` for those."
)
FAST: Mapping[str, Any] = {"slow_mo": 0, "pre_observation_delay": 0.0}


@dataclass(frozen=True, kw_only=True)
class BrowserGym:
    """Any environment of BrowserGym by the part of its id after the slash, such as `miniwob.click-button`.

    `python` is an interpreter that has it, `modules` are imported there to register ids, `arguments` are given to its
    constructor, `environment` are variables such as MINIWOB_URL (http, with a slash at its end); `${NAME}` in them is
    the value of our variable NAME, of which the interpreter gets none that holds a key. `chromium` is the path of a
    browser ("": the one that its Playwright has downloaded). `ids` may be several: tasks take turns. `subsets` are
    those of its actions; `longest` cuts the page's text, in characters.

    A reward is paid times `scale`; an episode is a success where the sum of its rewards before scaling is above
    `solved`. `turns` ends the episode without further reward. Every episode has two browsers and a Python of its own,
    so `plays` bounds how many there are at once. `expert` is "module:function" of (goal, text of the page) that gives
    an action.
    """

    python: str
    ids: tuple[str, ...]
    modules: tuple[str, ...] = ("browsergym.miniwob",)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    chromium: str = ""
    subsets: tuple[str, ...] = ("bid",)
    system: str = ""
    longest: Annotated[int, Range(100)] = 6_000
    scale: Annotated[float, Range(above=0)] = 1.0
    solved: float = 0.0
    turns: Annotated[int, Range(1)] = 20
    plays: Annotated[int, Range(1)] = 2
    timeout_s: Annotated[float, Range(above=0)] = 120.0
    expert: str = ""
    train: Annotated[int, Range(1)] = 100_000
    test: Annotated[int, Range(1)] = 1_000

    about: ClassVar[About] = About(
        source="BrowserGym, Le Sellier De Chezelles et al. 2024, arXiv:2412.05467",
        licence="Apache-2.0 (BrowserGym; a benchmark has its own)",
        programs={"chromium": "chromium"},
    )

    def __post_init__(self) -> None:
        require_within("browsergym", self, {"turns": (1, 10**6), "plays": (1, 10**6), **SIZES})
        if not self.ids or not all(self.ids):
            raise ConfigError('browsergym: ids is empty: name environments, such as "miniwob.click-button"')
        if self.longest < 100 or not self.timeout_s > 0 or not (math.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(
                f"browsergym: longest = {self.longest}, timeout_s = {self.timeout_s}, scale = {self.scale}: "
                "they must be at least 100, and above 0"
            )
        url = self.environment.get("MINIWOB_URL", "http:///")
        if not (url.startswith("http") and url.endswith("/")):
            raise ConfigError(f'browsergym: MINIWOB_URL = "{url}" must be http, with a slash at its end')
        if self.expert:
            called(self.expert, "browsergym: expert")
        _ = self.interpreter

    @property
    def capacity(self) -> int:
        return self.plays

    def risks(self) -> tuple[str, ...]:
        """Returns which protections do not hold on this machine, and which BrowserGym does not have."""
        return (*risks(), OPEN)

    @cached_property
    def interpreter(self) -> Interpreter:
        packages = "browsergym-core browsergym-miniwob"
        return Interpreter("browsergym", self.python, packages, environment=self.environment)

    def tasks(self, split: str) -> Generated:
        """Returns tasks in which the environments take turns; each seed is used once for each."""
        first, size = first_seed("browsergym", split), self.train if split == "train" else self.test

        def task(index: int) -> Task:
            name = self.ids[index % len(self.ids)]
            data = {"id": name, "arguments": dict(self.arguments)}
            return Task("browsergym", data, first + index // len(self.ids), split, (name,))

        return Generated(task, size * len(self.ids))

    def make(self, task: Task) -> BrowserGymPlay:
        return (BrowserGymPlayWithExpert if self.expert else BrowserGymPlay)(self, task)


class BrowserGymPlay:
    """One episode, in a Python of its own."""

    def __init__(self, world: BrowserGym, task: Task) -> None:
        self.world, self.task = world, task
        self.child: Child | None = None
        self.goal = self.page = ""
        self.turns_taken = 0
        self.total_reward = 0.0
        self.done = False

    async def start(self) -> Observation:
        world = self.world
        self.child = Child(world.interpreter)
        await self.child.open(world.timeout_s)
        page_state = await self.child.ask(
            0,
            "start",
            world.timeout_s,
            name=self.task.data["id"],
            modules=list(world.modules),
            arguments={**FAST, **self.task.data["arguments"]},
            subsets=list(world.subsets),
            chromium=world.chromium,
            sandbox=not risks(),
            seed=self.task.seed,
        )
        self.goal = page_state["goal"]
        system = "\n".join([*filter(None, [world.system]), "Say one of these calls:", *page_state["calls"]])
        text = f"{self.goal}\n\n{self._read(page_state)}"
        return Observation((Message(Role.USER, text),), system=(Message(Role.SYSTEM, system),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done or self.child is None:
            raise InfrastructureError(f"{self.task.data['id']} was given an action after its end: play each world once")
        if not action.text.strip() or len(action.text) > LONGEST_ACTION:
            raise ActionError(f"an action must have from 1 to {LONGEST_ACTION} characters")
        try:
            page_state = await self.child.ask(0, "step", self.world.timeout_s, action=action.text.strip())
        except InfrastructureError:
            self.done = True
            return Step(None, {agent: 0.0}, done=True, success=False, info={"lost": 1.0})
        self.turns_taken += 1
        self.total_reward += page_state["reward"]
        if not math.isfinite(self.total_reward):
            raise InfrastructureError(f"{self.task.data['id']} gave a reward that is no finite number")
        rewards = {agent: page_state["reward"] * self.world.scale}
        info = {"error": float(bool(page_state["error"]))}
        if page_state["terminated"] or page_state["truncated"] or self.turns_taken >= self.world.turns:
            self.done = True
            info["truncated"] = float(not page_state["terminated"])
            return Step(None, rewards, done=True, success=self.total_reward > self.world.solved, info=info)
        return Step(Observation((Message(Role.USER, self._read(page_state)),)), rewards, info=info)

    async def close(self) -> None:
        child, self.child, self.done = self.child, None, True
        if child is not None:
            await child.close()

    def state_key(self) -> str:
        """Identifies what is on the page, and how many turns are left."""
        key = f"{self.task.data['id']}/{self.goal}/{self.page}/{self.world.turns - self.turns_taken}"
        return hashlib.sha256(key.encode()).hexdigest()[:16]

    def _read(self, page_state: Mapping[str, Any]) -> str:
        text = page_state["text"].strip()
        self.page = text if len(text) <= self.world.longest else f"{text[: self.world.longest]}\n..."
        return f"error: {page_state['error']}\n\n{self.page}" if page_state["error"] else self.page


class BrowserGymPlayWithExpert(BrowserGymPlay):
    async def expert(self) -> str:
        return await settled(called(self.world.expert, "browsergym: expert")(self.goal, self.page))
