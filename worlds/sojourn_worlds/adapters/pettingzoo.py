"""Games of PettingZoo (Terry et al. 2021, arXiv:2009.14471) for several seats, in words; package `pettingzoo`.

Games of its turn-by-turn interface (AEC) as they are, and of its parallel one by PettingZoo's own conversion: each
moves in turn, and sees the world as it was before any of them moved. Differs from the loop that is usual there: who is
out is stepped over by us, an illegal action is refused instead of lost, and each reward is paid once, when it falls.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from sojourn.config.registry import Range
from sojourn.envs.about import About, need
from sojourn.envs.aside import Aside, Threads, offered
from sojourn.envs.fields import SIZES, require_within
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks.splits import seeded
from sojourn.types import Message, Observation, Role, Step, Task
from sojourn_worlds.adapters import spaces
from sojourn_worlds.adapters.hooks import called


@dataclass(frozen=True, kw_only=True)
class PettingZoo:
    """Any game of PettingZoo, by its module or its function: `pettingzoo.classic.tictactoe_v3`, `my.module:env`.

    `arguments` are given to its constructor. `opponent`: "self" (the policy sits in every seat), "random" or "expert":
    the world plays all seats but one, "agent", which is `seat`, or changes with the task's seed (""). `brief` says what
    it is about, `actions` names discrete actions in their order, `describe` is "module:function" of (observation, env,
    name of the seat) that says an observation ("": by its space, without the mask of legal actions). `expert` is one of
    the same three that gives an action. `choices` lists the legal actions.

    A reward is paid times `scale`: choose it so that rewards lie in [-1, 1]. `turns` ends a play after so many actions
    (0: when the game does). Plays are made and stepped in `threads` of this world's own, each play in one: more than
    one for games that wait, or compute outside of Python, and share nothing; 0 for those that must have the main
    thread, where a long step holds up everything else. The splits differ in their seeds alone.
    """

    id: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    opponent: str = "self"
    seat: str = ""
    brief: str = ""
    actions: tuple[str, ...] = ()
    describe: str = ""
    expert: str = ""
    choices: bool = False
    scale: Annotated[float, Range(above=0)] = 1.0
    turns: Annotated[int, Range(0)] = 0
    threads: Annotated[int, Range(0)] = 1
    train: Annotated[int, Range(1)] = 100_000
    test: Annotated[int, Range(1)] = 1_000

    about: ClassVar[About] = About(
        source="PettingZoo, Terry et al. 2021, arXiv:2009.14471, and the games that follow its interface",
        licence="MIT (PettingZoo; a game has its own)",
        extra="pettingzoo",
        seats="n",
        easy={"id": "pettingzoo.classic.tictactoe_v3", "choices": True},
    )

    def __post_init__(self) -> None:
        require_within("pettingzoo", self, SIZES)
        if not self.id:
            raise ConfigError('pettingzoo: id is empty: name a game, such as "pettingzoo.classic.tictactoe_v3"')
        if self.opponent not in ("self", "random", "expert"):
            raise ConfigError(f'pettingzoo: opponent = "{self.opponent}": use "self", "random" or "expert"')
        if self.opponent == "expert" and not self.expert:
            raise ConfigError('pettingzoo: opponent = "expert" needs an `expert`: name a function that gives an action')
        if self.seat and self.opponent == "self":
            raise ConfigError(f'pettingzoo: seat = "{self.seat}", but opponent = "self" sits in all: leave one out')
        if self.turns < 0 or not (math.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"pettingzoo: turns = {self.turns}, scale = {self.scale}: neither may be negative")
        if self.threads < 0:
            raise ConfigError(f"pettingzoo: threads = {self.threads}, but it may not be negative")
        for key in ("describe", "expert"):
            if getattr(self, key):
                called(getattr(self, key), f"pettingzoo: {key}")

    @cached_property
    def players(self) -> tuple[str, ...]:
        """The names that the game gives to those who play."""
        game = self.build()
        try:
            names = tuple(map(str, game.possible_agents))
        finally:
            game.close()
        if self.seat and self.seat not in names:
            raise ConfigError(f'pettingzoo: seat = "{self.seat}", but the game has {", ".join(names)}')
        return names

    @property
    def seats(self) -> tuple[str, ...]:
        return self.players if self.opponent == "self" else ("agent",)

    def tasks(self, split: str) -> Sequence[Task]:
        data = {"id": self.id, "arguments": dict(self.arguments)}
        return seeded("pettingzoo", self, split, data)

    def make(self, task: Task) -> PettingZooPlay | Aside:
        if (task.data["id"], dict(task.data["arguments"])) != (self.id, dict(self.arguments)):
            raise ConfigError(f"pettingzoo: task {task.id} is of {task.data['id']}, but this is {self.id}")
        cls = PettingZooPlayWithExpert if self.expert and self.opponent != "self" else PettingZooPlay
        return self._aside.make(lambda: cls(self, task), offered(cls)) if self.threads else cls(self, task)

    @cached_property
    def _aside(self) -> Threads:
        return Threads(self.threads, "pettingzoo")

    def build(self) -> Any:
        """The game in its turn-by-turn interface, before its reset."""
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it would greet us on our standard output
        package = need("pettingzoo", "sojourn-worlds[pettingzoo]", "pettingzoo")
        if ":" in self.id:
            made = called(self.id, "pettingzoo: id")(**self.arguments)
        else:
            try:
                module = importlib.import_module(self.id)
            except ImportError as error:
                raise ConfigError(
                    f'pettingzoo: id = "{self.id}" cannot be imported ({error}): correct the name, or install the '
                    "packages of its kind, such as pip install 'pettingzoo[classic]'"
                ) from error
            made = (getattr(module, "env", None) or module.parallel_env)(**self.arguments)
        if isinstance(made, package.ParallelEnv):
            from pettingzoo.utils.conversions import parallel_to_aec

            return parallel_to_aec(made)
        return made


class PettingZooPlay:
    """One play: the game, who was told what it is about, and what was done so far."""

    def __init__(self, world: PettingZoo, task: Task) -> None:
        self.world, self.task = world, task
        self.env: Any = None
        self.rng = random.Random(f"pettingzoo {task.seed}")
        others = world.players if world.opponent != "self" else ()
        self.mine = (world.seat or others[task.seed % len(others)]) if others else ""
        self.told: frozenset[str] = frozenset()
        self.taken: list[Any] = []  # all actions, those of the world's own players too
        self.turns_taken = 0
        self.owed: dict[str, float] = {}  # for what the world's own players did before anybody else moved
        self.said = ""
        self.done = False

    async def start(self) -> Observation:
        self.env = self.world.build()
        self.env.reset(seed=self.task.seed)
        self._go_on(self.owed)
        if self.done:
            raise InfrastructureError(f"pettingzoo: {self.world.id} was over before anybody moved")
        return self._observe()

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError(f"{self.world.id} was given an action after its end: play each game once")
        if agent != self.mover:
            raise InfrastructureError(f"{self.world.id}: {agent} moves when it is the turn of {self.mover}")
        chosen = spaces.read(self.space, action.text, self.names)
        if (mask := self._mask()) is not None and not mask[int(chosen) - int(self.space.start)]:
            raise ActionError(f"{action.text.strip()} is not possible now, say one of {', '.join(self._possible())}")
        paid, self.owed = dict(self.owed), {}
        self._take(chosen, paid)
        self.turns_taken += 1
        self._go_on(paid)
        rewards = self._shared(paid)
        if self.done or self.turns_taken == self.world.turns:
            truncated = float(not self.done)
            self.done = True
            return Step(None, rewards, done=True, info={"truncated": truncated})
        return Step(self._observe(), rewards)

    async def close(self) -> None:
        env, self.env, self.done = self.env, None, True
        if env is not None:
            env.close()

    async def fork(self) -> PettingZooPlay:
        """A new game in which the same was done: a copy of most games is one that has not begun (`EzPickle`)."""
        twin = copy.copy(self)
        twin.taken = list(self.taken)
        twin.rng = random.Random()
        twin.rng.setstate(self.rng.getstate())
        twin.env = self.world.build()
        twin.env.reset(seed=self.task.seed)
        for action in self.taken:
            twin.env.step(action)
        return twin

    def state_key(self) -> str:
        """What looks alike to the same seat is the same state, with as many turns left where those are limited."""
        left = f"/{self.world.turns - self.turns_taken}" if self.world.turns else ""
        return hashlib.sha256(f"{self.world.id}/{self.seat}/{self.said}{left}".encode()).hexdigest()[:16]

    @property
    def seat(self) -> str:
        """Who moves now, as the game calls them."""
        return str(self.env.agent_selection) if self.env is not None and not self.done else ""

    @property
    def mover(self) -> str:
        """Who moves now, as the runner calls them."""
        return "agent" if self.mine else self.seat

    @property
    def space(self) -> Any:
        return self.env.action_space(self.env.agent_selection)

    @property
    def names(self) -> tuple[str, ...]:
        return spaces.names_of(self.space, self.world.actions, f"pettingzoo: {self.world.id}")

    def _go_on(self, paid: dict[str, float]) -> None:
        """Until somebody of the policy's moves, or the game is over."""
        while self.env.agents:
            name = self.env.agent_selection
            if self.env.terminations[name] or self.env.truncations[name]:
                self._take(None, {})
            elif self.mine and name != self.mine:
                self._take(self._theirs(), paid)
            else:
                self.said = self._say()
                return
        self.done = True

    def _take(self, action: Any, paid: dict[str, float]) -> None:
        self.env.step(action)
        self.taken.append(action)
        for name, reward in self.env.rewards.items():
            if not math.isfinite(reward):
                raise InfrastructureError(f"{self.world.id} gave {name} the reward {reward}: expected a finite number")
            paid[str(name)] = paid.get(str(name), 0.0) + float(reward) * self.world.scale

    def _theirs(self) -> Any:
        """What one of the world's own players does."""
        if self.world.opponent == "expert":
            return self.best()
        if (mask := self._mask()) is not None or self.names:
            legal = np.flatnonzero(mask) if mask is not None else range(len(self.names))
            return self.space.dtype.type(int(self.space.start) + self.rng.choice(list(legal)))
        drawn = copy.deepcopy(self.space)
        drawn.seed(self.rng.getrandbits(31))
        return drawn.sample()

    def best(self) -> Any:
        hook = called(self.world.expert, "pettingzoo: expert")
        return hook(self.env.observe(self.env.agent_selection), self.env, self.seat)

    def _shared(self, paid: Mapping[str, float]) -> dict[str, float]:
        return {"agent": paid.get(self.mine, 0.0)} if self.mine else dict(paid)

    def _mask(self) -> Any:
        """Which actions are legal now, where the game says: in the observation, or in what goes with it."""
        name = self.env.agent_selection
        seen = self.env.observe(name)
        if isinstance(seen, Mapping) and "action_mask" in seen:
            return seen["action_mask"]
        return self.env.infos.get(name, {}).get("action_mask")

    def _possible(self) -> tuple[str, ...]:
        mask = self._mask()
        return tuple(name for i, name in enumerate(self.names) if mask is None or mask[i])

    def _say(self) -> str:
        name = self.env.agent_selection
        seen, space = self.env.observe(name), self.env.observation_space(name)
        if self.world.describe:
            return str(called(self.world.describe, "pettingzoo: describe")(seen, self.env, self.seat))
        if isinstance(seen, Mapping) and set(seen) == {"observation", "action_mask"}:
            seen, space = seen["observation"], space["observation"]
        return spaces.say(space, seen, f"pettingzoo: {self.world.id}")

    def _observe(self) -> Observation:
        seat, names = self.seat, self.names
        brief: tuple[Message, ...] = ()
        if seat not in self.told:
            shown = ", ".join(names) if 0 < len(names) <= spaces.MOST_CHOICES else spaces.in_words(self.space)
            about = self.world.brief or f"You play {self.world.id.rpartition('.')[2]}."
            brief = (Message(Role.SYSTEM, f"{about} You are {seat}. Say one action: {shown}."),)
            self.told |= {seat}
        choices = self._possible() if self.world.choices and len(names) <= spaces.MOST_CHOICES else ()
        return Observation((Message(Role.USER, self.said),), system=brief, choices=choices, agent=self.mover)


class PettingZooPlayWithExpert(PettingZooPlay):
    def expert(self) -> str:
        return spaces.spoken(self.space, self.best(), self.names)
