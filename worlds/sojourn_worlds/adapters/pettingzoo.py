"""Games of PettingZoo (Terry et al. 2021, arXiv:2009.14471) for several seats, in words; package `pettingzoo`.

A task is a seed. An action is the name of a discrete action or a Python literal; an observation is a text for the seat
that acts, made from its observation space or by a function of the user's. Rewards are the game's, times `scale`; the
episode ends with the game, or after `turns` actions.

Games with its turn-by-turn interface (AEC) run as they are, those with its parallel one by PettingZoo's own conversion:
each seat moves in turn, and sees the world as it was before any of them moved. It differs from the usual loop: players
who are out are stepped over by us, an illegal action is refused instead of losing the game, and each reward is paid
once, when it occurs.
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

from sojourn.abilities import play_abilities
from sojourn.config.fields import Range
from sojourn.envs.about import About, require_module
from sojourn.envs.env_threads import EnvThreads, ThreadedEnv
from sojourn.envs.fields import SIZES, require_within
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Message, Observation, Role, Step, Task
from sojourn_worlds.adapters import spaces
from sojourn_worlds.adapters.hooks import called


@dataclass(frozen=True, kw_only=True)
class PettingZoo:
    """Any game of PettingZoo, by its module or its function: `pettingzoo.classic.tictactoe_v3`, `my.module:env`.

    `arguments` are given to its constructor. `opponent`: "self" (the policy sits in every seat), "random" or "expert":
    the world plays all seats but one, "agent", which is `seat`, or changes with the task's seed (""). `system` says
    what it is about, `actions` names discrete actions in their order, `describe` is "module:function" of (observation,
    env, name of the seat) that says an observation ("": by its space, without the mask of legal actions). `expert` is
    one of the same three that gives an action. `choices` lists the legal actions.

    A reward is paid times `scale`: choose it so that rewards lie in [-1, 1]. `turns` ends the episode after so many
    actions (0: when the game does). Environments are made and stepped in `threads` of this world's own, each episode
    in one: more than one for games that wait, or compute outside of Python, and share nothing; 0 for those that must
    have the main thread, where a long step holds up everything else. The splits differ in their seeds alone.
    """

    id: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    opponent: str = "self"
    seat: str = ""
    system: str = ""
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
        smallest={"id": "pettingzoo.classic.tictactoe_v3", "choices": True},
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
        """Returns the game's names of its players."""
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
        return make_tasks_from_data("pettingzoo", self, split, data)

    def make(self, task: Task) -> PettingZooPlay | ThreadedEnv:
        if (task.data["id"], dict(task.data["arguments"])) != (self.id, dict(self.arguments)):
            raise ConfigError(f"pettingzoo: task {task.id} is of {task.data['id']}, but this is {self.id}")
        cls = PettingZooPlayWithExpert if self.expert and self.opponent != "self" else PettingZooPlay
        return self._env_threads.make(lambda: cls(self, task), play_abilities(cls)) if self.threads else cls(self, task)

    @cached_property
    def _env_threads(self) -> EnvThreads:
        return EnvThreads(self.threads, "pettingzoo")

    def build(self) -> Any:
        """Returns the game in its turn-by-turn interface, before its reset."""
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it would greet us on our standard output
        package = require_module("pettingzoo", "sojourn-worlds[pettingzoo]", "pettingzoo")
        if ":" in self.id:
            game = called(self.id, "pettingzoo: id")(**self.arguments)
        else:
            try:
                module = importlib.import_module(self.id)
            except ImportError as error:
                raise ConfigError(
                    f'pettingzoo: id = "{self.id}" cannot be imported ({error}): correct the name, or install the '
                    "packages of its kind, such as pip install 'pettingzoo[classic]'"
                ) from error
            game = (getattr(module, "env", None) or module.parallel_env)(**self.arguments)
        if isinstance(game, package.ParallelEnv):
            from pettingzoo.utils.conversions import parallel_to_aec

            return parallel_to_aec(game)
        return game


class PettingZooPlay:
    """One episode: the game, the seats that know its rules, and the actions so far."""

    def __init__(self, world: PettingZoo, task: Task) -> None:
        self.world, self.task = world, task
        self.env: Any = None
        self.rng = random.Random(f"pettingzoo {task.seed}")
        others = world.players if world.opponent != "self" else ()
        self.policy_player = (world.seat or others[task.seed % len(others)]) if others else ""
        self.informed_players: frozenset[str] = frozenset()
        self.actions_taken: list[Any] = []  # of all players, the world's own included
        self.turns_taken = 0
        self.pending_rewards: dict[str, float] = {}  # from moves of the world's own players before the policy's first
        self.last_observation = ""
        self.done = False

    async def start(self) -> Observation:
        self.env = self.world.build()
        self.env.reset(seed=self.task.seed)
        self._advance(self.pending_rewards)
        if self.done:
            raise InfrastructureError(f"pettingzoo: {self.world.id} was over before anybody moved")
        return self._observe()

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError(f"{self.world.id} was given an action after its end: play each game once")
        if agent != self.current_seat:
            raise InfrastructureError(f"{self.world.id}: {agent} moves when it is the turn of {self.current_seat}")
        chosen = spaces.read(self.space, action.text, self.names)
        if (mask := self._mask()) is not None and not mask[int(chosen) - int(self.space.start)]:
            raise ActionError(f"{action.text.strip()} is not possible now, say one of {', '.join(self._possible())}")
        rewards, self.pending_rewards = dict(self.pending_rewards), {}
        self._apply(chosen, rewards)
        self.turns_taken += 1
        self._advance(rewards)
        rewards = self._rewards_of_seats(rewards)
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
        """Returns a new game in which the same actions are repeated: a copy of most games is one that has not begun
        (`EzPickle`).
        """
        twin = copy.copy(self)
        twin.actions_taken = list(self.actions_taken)
        twin.rng = random.Random()
        twin.rng.setstate(self.rng.getstate())
        if self.env is None:  # not started yet, or closed
            return twin
        twin.env = self.world.build()
        try:
            twin.env.reset(seed=self.task.seed)
            for action in self.actions_taken:
                twin.env.step(action)
            if not self.done and (twin.seat, twin._describe()) != (self.seat, self.last_observation):
                raise InfrastructureError(
                    f"{self.world.id} is not deterministic: replayed for a fork, it gives another observation after "
                    f"{len(self.actions_taken)} actions"
                )
        except BaseException:
            twin.env.close()
            raise
        return twin

    def state_key(self) -> str:
        """Identifies states that look alike to the same seat, with the turns left where those are limited."""
        left = f"/{self.world.turns - self.turns_taken}" if self.world.turns else ""
        return hashlib.sha256(f"{self.world.id}/{self.seat}/{self.last_observation}{left}".encode()).hexdigest()[:16]

    @property
    def seat(self) -> str:
        """Returns the player who moves now, by the game's name."""
        return str(self.env.agent_selection) if self.env is not None and not self.done else ""

    @property
    def current_seat(self) -> str:
        """Returns the player who moves now, by the runner's name."""
        return "agent" if self.policy_player else self.seat

    @property
    def space(self) -> Any:
        return self.env.action_space(self.env.agent_selection)

    @property
    def names(self) -> tuple[str, ...]:
        return spaces.names_of(self.space, self.world.actions, f"pettingzoo: {self.world.id}")

    def _advance(self, rewards: dict[str, float]) -> None:
        """Plays the world's own players until a seat of the policy moves, or the game is over."""
        while self.env.agents:
            name = self.env.agent_selection
            if self.env.terminations[name] or self.env.truncations[name]:
                self._apply(None, {})
            elif self.policy_player and name != self.policy_player:
                self._apply(self._world_player_action(), rewards)
            else:
                self.last_observation = self._describe()
                return
        self.done = True

    def _apply(self, action: Any, rewards: dict[str, float]) -> None:
        self.env.step(action)
        self.actions_taken.append(action)
        for name, reward in self.env.rewards.items():
            if not math.isfinite(reward):
                raise InfrastructureError(f"{self.world.id} gave {name} the reward {reward}: expected a finite number")
            rewards[str(name)] = rewards.get(str(name), 0.0) + float(reward) * self.world.scale

    def _world_player_action(self) -> Any:
        """Returns the action of one of the world's own players."""
        if self.world.opponent == "expert":
            return self.expert_action()
        if (mask := self._mask()) is not None or self.names:
            legal = np.flatnonzero(mask) if mask is not None else range(len(self.names))
            return self.space.dtype.type(int(self.space.start) + self.rng.choice(list(legal)))
        drawn = copy.deepcopy(self.space)
        drawn.seed(self.rng.getrandbits(31))
        return drawn.sample()

    def expert_action(self) -> Any:
        hook = called(self.world.expert, "pettingzoo: expert")
        return hook(self.env.observe(self.env.agent_selection), self.env, self.seat)

    def _rewards_of_seats(self, rewards: Mapping[str, float]) -> dict[str, float]:
        return {"agent": rewards.get(self.policy_player, 0.0)} if self.policy_player else dict(rewards)

    def _mask(self) -> Any:
        """Returns which actions are legal now, where the game says so: in the observation, or in the info beside it."""
        name = self.env.agent_selection
        observation = self.env.observe(name)
        if isinstance(observation, Mapping) and "action_mask" in observation:
            return observation["action_mask"]
        return self.env.infos.get(name, {}).get("action_mask")

    def _possible(self) -> tuple[str, ...]:
        mask = self._mask()
        return tuple(name for i, name in enumerate(self.names) if mask is None or mask[i])

    def _describe(self) -> str:
        name = self.env.agent_selection
        observation, space = self.env.observe(name), self.env.observation_space(name)
        if self.world.describe:
            return str(called(self.world.describe, "pettingzoo: describe")(observation, self.env, self.seat))
        if isinstance(observation, Mapping) and set(observation) == {"observation", "action_mask"}:
            observation, space = observation["observation"], space["observation"]
        return spaces.say(space, observation, f"pettingzoo: {self.world.id}")

    def _observe(self) -> Observation:
        seat, names = self.seat, self.names
        system: tuple[Message, ...] = ()
        if seat not in self.informed_players:
            actions = ", ".join(names) if 0 < len(names) <= spaces.MOST_CHOICES else spaces.in_words(self.space)
            about = self.world.system or f"You play {self.world.id.rpartition('.')[2]}."
            system = (Message(Role.SYSTEM, f"{about} You are {seat}. Say one action: {actions}."),)
            self.informed_players |= {seat}
        choices = self._possible() if self.world.choices and len(names) <= spaces.MOST_CHOICES else ()
        return Observation(
            (Message(Role.USER, self.last_observation),), system=system, choices=choices, agent=self.current_seat
        )


class PettingZooPlayWithExpert(PettingZooPlay):
    def expert(self) -> str:
        return spaces.spoken(self.space, self.expert_action(), self.names)
