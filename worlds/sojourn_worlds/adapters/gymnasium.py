"""Environments of Gymnasium (Towers et al. 2024, arXiv:2407.17032) in words; package `gymnasium`.

A task is a seed. An action is the name of a discrete action or a Python literal; an observation is a text, which
`spaces` makes from the observation space, or the environment's own rendering, or a function of the user's. Rewards are
the environment's, times `scale`; the episode ends when the environment terminates or truncates it, or after `turns`
actions.

It differs from the usual loop: an action that is not in the space is refused and nothing is stepped.
"""

from __future__ import annotations

import copy
import hashlib
import math
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

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

PAINTED = re.compile(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m", re.DOTALL)
VERSIONED = re.compile(r"-v\d+$")
COLOURS = ("grey", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
UNCOPIABLE = (TypeError, ValueError, AttributeError, NotImplementedError, RuntimeError, pickle.PicklingError)


@dataclass(frozen=True, kw_only=True)
class Gymnasium:
    """Any environment of Gymnasium, by its id or its class: `FrozenLake-v1`, `minigrid:MiniGrid-Empty-5x5-v0` (of a
    package that registers it), `my.module:MyEnv`.

    `arguments` are given to its constructor, `options` to reset, whose seed is the task's. `system` says what it is
    about. `actions` names discrete actions in their order. `describe` says an observation: "" by its space, "render"
    by the environment's own text rendering, or "module:function" of (observation, env). `masked` refuses discrete
    actions that `info["action_mask"]` rules out. `choices` lists discrete actions.

    A reward is paid times `scale`: choose it so that rewards lie in [-1, 1]. An episode is a success where
    `info["is_success"]` says so, or the sum of its rewards before scaling is above `solved`. It ends with the
    environment's own time limit, or after `turns` actions (0: never), both as truncated. `forks` are copies of the
    environment, or a new one in which the same actions are repeated, where it cannot be copied or "replay" is said.
    `expert` is "module:function" of (env, observation) that gives an action of its space. Environments are made and
    stepped in `threads` of this world's own, each episode in one: more than one for environments that wait, or compute
    outside of Python, and share nothing; 0 for those that must have the main thread, where a long step holds up
    everything else.

    The splits differ in their seeds alone: of an environment that starts alike whatever the seed, they are the same.
    """

    id: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    system: str = ""
    actions: tuple[str, ...] = ()
    describe: str = ""
    masked: bool = False
    choices: bool = False
    scale: Annotated[float, Range(above=0)] = 1.0
    solved: float = 0.0
    turns: Annotated[int, Range(0)] = 0
    forks: Literal["copy", "replay"] = "copy"
    expert: str = ""
    threads: Annotated[int, Range(0)] = 1
    train: Annotated[int, Range(1)] = 100_000
    test: Annotated[int, Range(1)] = 1_000

    about: ClassVar[About] = About(
        source="Gymnasium, Towers et al. 2024, arXiv:2407.17032, and the environments that follow its interface",
        licence="MIT (Gymnasium; an environment has its own)",
        extra="gymnasium",
        smallest={
            "id": "FrozenLake-v1",
            "arguments": {"is_slippery": False},
            "actions": ("left", "down", "right", "up"),
            "describe": "render",
            "choices": True,
        },
    )

    def __post_init__(self) -> None:
        require_within("gymnasium", self, SIZES)
        if not self.id:
            raise ConfigError('gymnasium: id is empty: name an environment, such as "FrozenLake-v1" or "module:Class"')
        if self.turns < 0 or self.threads < 0:
            raise ConfigError(f"gymnasium: turns = {self.turns}, threads = {self.threads}: neither may be negative")
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"gymnasium: scale = {self.scale}, but it must be a number above 0")
        if self.forks not in ("copy", "replay"):
            raise ConfigError(f'gymnasium: forks = {self.forks!r}, but it must be "copy" or "replay"')
        if self.describe not in ("", "render"):
            called(self.describe, "gymnasium: describe")
        if self.expert:
            called(self.expert, "gymnasium: expert")

    def tasks(self, split: str) -> Sequence[Task]:
        data = {"id": self.id, "arguments": dict(self.arguments), "options": dict(self.options)}
        return make_tasks_from_data("gymnasium", self, split, data)

    def make(self, task: Task) -> GymnasiumPlay | ThreadedEnv:
        cls = GymnasiumPlayWithExpert if self.expert else GymnasiumPlay
        return self._env_threads.make(lambda: cls(self, task), play_abilities(cls)) if self.threads else cls(self, task)

    @cached_property
    def _env_threads(self) -> EnvThreads:
        return EnvThreads(self.threads, "gymnasium")

    def build(self, task: Task) -> Any:
        """Returns the environment of a task, before its reset."""
        package = require_module("gymnasium", "sojourn-worlds[gymnasium]", "gymnasium")
        name, arguments = task.data["id"], dict(task.data["arguments"])
        if self.describe == "render":
            arguments.setdefault("render_mode", "ansi")
        if ":" in name and not VERSIONED.search(name):
            return called(name, "gymnasium: id")(**arguments)
        try:
            return package.make(name, disable_env_checker=True, **arguments)
        except (package.error.UnregisteredEnv, ModuleNotFoundError) as error:
            raise ConfigError(
                f'gymnasium: id = "{name}" is not registered ({error}): correct it, or name the package that '
                'registers it, such as "minigrid:MiniGrid-Empty-5x5-v0"'
            ) from error


class GymnasiumPlay:
    """One episode: the environment, its last observation, and the actions so far."""

    def __init__(self, world: Gymnasium, task: Task) -> None:
        self.world, self.task = world, task
        self.env: Any = None
        self.names: tuple[str, ...] = ()
        self.last_observation: Any = None
        self.observation_text = ""
        self.mask: Any = None
        self.actions_taken: list[Any] = []
        self.total_reward = 0.0
        self.done = False

    async def start(self) -> Observation:
        self.env = self.world.build(self.task)
        name = f"gymnasium: {self.task.data['id']}"
        self.names = spaces.names_of(self.env.action_space, self.world.actions, name)
        self._see(*self.env.reset(seed=self.task.seed, options=dict(self.task.data["options"]) or None))
        actions = ", ".join(self.names) if 0 < len(self.names) <= spaces.MOST_CHOICES else None
        how = f"Say one action: {actions or spaces.in_words(self.env.action_space)}."
        about = self.world.system or f"You act in {self.task.data['id']}."
        return self._observe((Message(Role.SYSTEM, f"{about} {how}"),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError(f"{self.task.data['id']} was given an action after its end: play each world once")
        chosen = spaces.read(self.env.action_space, action.text, self.names)
        if self.mask is not None and not self.mask[int(chosen) - int(self.env.action_space.start)]:
            raise ActionError(f"{action.text.strip()} is not possible now, say one of {', '.join(self._possible())}")
        observation, reward, terminated, truncated, info = self.env.step(chosen)
        self.actions_taken.append(chosen)
        self.total_reward += float(reward)
        if not math.isfinite(self.total_reward):
            raise InfrastructureError(f"{self.task.data['id']} gave the reward {reward}: expected a finite number")
        rewards = {agent: float(reward) * self.world.scale}
        truncated = bool(truncated) or len(self.actions_taken) == self.world.turns
        if terminated or truncated:
            self.done = True
            success = bool(info.get("is_success", self.total_reward > self.world.solved))
            return Step(None, rewards, done=True, success=success, info={"truncated": float(not terminated)})
        self._see(observation, info)
        return Step(self._observe(), rewards)

    async def close(self) -> None:
        env, self.env, self.done = self.env, None, True
        if env is not None:
            env.close()

    async def fork(self) -> GymnasiumPlay:
        twin = copy.copy(self)
        twin.actions_taken = list(self.actions_taken)
        if self.env is None:  # not started yet, or closed
            return twin
        if (copied := self._copied()) is not None:
            twin.env, twin.last_observation, twin.mask = copied
        else:
            twin._play_again()
        return twin

    def state_key(self) -> str:
        """Identifies states by their observation's text, with the turns left where those are limited."""
        left = f"/{self.world.turns - len(self.actions_taken)}" if self.world.turns else ""
        return hashlib.sha256(f"{self.task.data['id']}/{self.observation_text}{left}".encode()).hexdigest()[:16]

    def _copied(self) -> tuple[Any, Any, Any] | None:
        """Returns copies of the environment, its last observation and its mask, which may be parts of it that it
        changes in place; None where it cannot be copied."""
        if self.world.forks == "replay" or any(_made_anew(env) for env in _layers(self.env)):
            return None
        try:
            return copy.deepcopy((self.env, self.last_observation, self.mask))
        except UNCOPIABLE:  # it holds a window, a generator, a handle of C
            return None

    def _play_again(self) -> None:
        """Repeats the actions in a new environment, which must come to the same."""
        before, total = (self.observation_text, self.total_reward), 0.0
        self.env = self.world.build(self.task)
        try:
            seen, info = self.env.reset(seed=self.task.seed, options=dict(self.task.data["options"]) or None)
            for action in self.actions_taken:
                seen, reward, _, _, info = self.env.step(action)
                total += float(reward)
            if not self.done:
                self._see(seen, info)
            if before != (self.observation_text, total):
                raise InfrastructureError(
                    f"gymnasium: {self.task.data['id']} is not deterministic: replayed for a fork, it gives another "
                    f"observation or reward after {len(self.actions_taken)} actions"
                )
        except BaseException:
            self.env.close()
            raise

    def _see(self, observation: Any, info: Mapping[str, Any]) -> None:
        self.last_observation = observation
        if self.world.masked:
            if "action_mask" not in info or not self.names:
                raise ConfigError(f"gymnasium: {self.task.data['id']} gives no action mask: leave out masked")
            self.mask = info["action_mask"]
        if self.world.describe == "render":
            self.observation_text = unpainted(self.env.render())
        elif self.world.describe:
            self.observation_text = str(called(self.world.describe, "gymnasium: describe")(observation, self.env))
        else:
            self.observation_text = spaces.say(
                self.env.observation_space, observation, f"gymnasium: {self.task.data['id']}"
            )

    def _observe(self, system: tuple[Message, ...] = ()) -> Observation:
        listed = self.world.choices and len(self.names) <= spaces.MOST_CHOICES
        choices = self._possible() if listed else ()
        return Observation((Message(Role.USER, self.observation_text),), system=system, choices=choices)

    def _possible(self) -> tuple[str, ...]:
        return tuple(n for i, n in enumerate(self.names) if self.mask is None or self.mask[i])


class GymnasiumPlayWithExpert(GymnasiumPlay):
    def expert(self) -> str:
        action = called(self.world.expert, "gymnasium: expert")(self.env, self.last_observation)
        return spaces.spoken(self.env.action_space, action, self.names)


def _layers(env: Any) -> Iterator[Any]:
    """Yields an environment and those that it wraps."""
    while env is not None:
        yield env
        env = getattr(env, "env", None)


def _made_anew(env: Any) -> bool:
    """Returns whether a copy of an environment is a new one without the state (`EzPickle`)."""
    return any(parent.__name__ == "EzPickle" for parent in type(env).__mro__)


def unpainted(rendered: Any) -> str:
    """Returns a text rendering for the terminal with its colours as words: what is painted red becomes (it red)."""
    if not isinstance(rendered, str):
        raise ConfigError(
            f'gymnasium: describe = "render" needs a text rendering, but it gave {type(rendered).__name__}: '
            "name a function in `describe`"
        )

    def named(match: re.Match[str]) -> str:
        colours = [COLOURS[int(code) % 10] for code in match[1].split(";") if code.isdigit() and 30 <= int(code) <= 47]
        return f"({match[2]} {colours[0]})" if colours else match[2]

    return PAINTED.sub(named, rendered).strip("\n")
