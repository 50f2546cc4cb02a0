"""Environments of Aviary (Narayanan et al. 2024, arXiv:2412.21154), by their tools; package `fhaviary`.

A task is one of a data set, or a row of a file. An action is one or several tool calls; an observation is what the
tools return. Rewards are the environment's, times `scale`, and the episode ends when the environment says so, or after
`turns` actions.

It differs from the usual rollouts: a call that does not fit its tool's schema is refused before it is made; a
ValueError that a tool raises is shown to the agent, any other error is a failure of the environment.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from sojourn.abilities import play_abilities
from sojourn.call_text import answer
from sojourn.config.fields import Range
from sojourn.envs.about import About, require_module
from sojourn.envs.calls import settled
from sojourn.envs.env_threads import EnvThreads, ThreadedEnv
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.tasks import Generated
from sojourn.tasks.splits import first_seed
from sojourn.types import Message, Observation, Role, Step, Task, Tool, ToolCall
from sojourn_worlds.adapters.gymnasium import UNCOPIABLE
from sojourn_worlds.adapters.hooks import called
from sojourn_worlds.adapters.listed import listed
from sojourn_worlds.adapters.toolbox import FORMS, Form, NativeActions, Toolbox


@dataclass(frozen=True, kw_only=True)
class Aviary:
    """Any environment of Aviary: the tasks of a `dataset`, or an `env` with tasks of yours.

    Both are named as Aviary registers them, or as "module:Class", and made with `arguments`. Of a dataset, the splits
    are made with `splits.train` and `splits.test` besides, where given; else every fifth task is for testing. An
    environment takes its tasks from the file `instructions`, JSON lines or TOML (`[[task]]`), each with a `task` (text,
    for its `from_task`) or its own `arguments`, and perhaps a `split`.

    A reward is paid times `scale`: choose it so that rewards lie in [-1, 1]. An episode is a success where the sum of
    its rewards before scaling is above `solved`. `turns` ends the episode without further reward. `forks` are copies
    of the environment, or a new one in which the same calls are repeated, where it cannot be copied or "replay" is
    said. `expert` is "module:function" of the environment that gives the text of a call. Episodes are in `threads` of
    this world's own, each with an event loop, so that a tool that computes long holds up none but them; 0: in the
    run's.
    """

    dataset: str = ""
    env: str = ""
    instructions: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    splits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    system: str = ""
    form: Form = "both"
    scale: Annotated[float, Range(above=0)] = 1.0
    solved: float = 0.0
    turns: Annotated[int, Range(1)] = 20
    forks: Literal["copy", "replay"] = "copy"
    expert: str = ""
    threads: Annotated[int, Range(0)] = 1
    _datasets: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    about: ClassVar[About] = About(
        source="Aviary, Narayanan et al. 2024, arXiv:2412.21154, and the environments that follow its interface",
        licence="Apache-2.0 (fhaviary; an environment and its data have their own)",
        extra="aviary",
    )

    def __post_init__(self) -> None:
        if bool(self.dataset) == bool(self.env):
            raise ConfigError("aviary: name either a dataset, or an env with a file of tasks in `instructions`")
        if bool(self.instructions) != bool(self.env):
            raise ConfigError("aviary: an env takes its tasks from `instructions`, a dataset has its own")
        if set(self.splits) - {"train", "test"} or (self.splits and len(self.splits) < 2):
            raise ConfigError(f"aviary: splits = {dict(self.splits)}: give the arguments of both train and test")
        if self.form not in FORMS or self.forks not in ("copy", "replay"):
            raise ConfigError(
                f'aviary: form = {self.form!r}, forks = {self.forks!r}: use one of {", ".join(FORMS)}, and "copy" or '
                '"replay"'
            )
        if self.turns < 1 or not (math.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"aviary: turns = {self.turns}, scale = {self.scale}: both must be above 0")
        if self.threads < 0:
            raise ConfigError(f"aviary: threads = {self.threads}, but it may not be negative")
        if self.expert:
            called(self.expert, "aviary: expert")
        if self.instructions:
            listed(self.instructions, "aviary", "train")

    def tasks(self, split: str) -> Sequence[Task]:
        first = first_seed("aviary", split)
        if self.env:
            rows = [self._row(row) for row in listed(self.instructions, "aviary", split)]
            return [Task("aviary", {"env": self.env, **row}, first + i, split) for i, row in enumerate(rows)]
        shared = {"dataset": self.dataset, "arguments": {**self.arguments, **self.splits.get(split, {})}}
        try:
            size = len(self._dataset(shared))
        except TypeError:
            raise ConfigError(
                f'aviary: dataset = "{self.dataset}" has no length: its tasks cannot be told apart'
            ) from None
        numbers = range(size) if self.splits else [i for i in range(size) if (i % 5 == 4) == (split == "test")]
        return Generated(lambda i: Task("aviary", {**shared, "index": numbers[i]}, first + i, split), len(numbers))

    def make(self, task: Task) -> AviaryPlay | ThreadedEnv:
        cls = AviaryPlayWithExpert if self.expert else AviaryPlay
        return self._env_threads.make(lambda: cls(self, task), play_abilities(cls)) if self.threads else cls(self, task)

    async def open(self) -> None:
        """Prepares the threads; may be called again, where each call needs its `close`."""
        self._env_threads.enter()

    async def close(self) -> None:
        self._env_threads.leave()

    @cached_property
    def _env_threads(self) -> EnvThreads:
        return EnvThreads(self.threads, "aviary")

    def build(self, task: Task) -> Any:
        """Returns the environment of a task, before its reset."""
        core = require_module("aviary.core", "sojourn-worlds[aviary]", "aviary")
        data = task.data
        if "dataset" in data:
            return self._dataset(data).get_new_env_by_idx(data["index"])
        if ":" not in data["env"]:
            text = {"task": data["task"]} if "task" in data else data["arguments"]
            return core.Environment.from_name(data["env"], **text)
        cls = called(data["env"], "aviary: env")
        return cls.from_task(data["task"]) if "task" in data else cls(**data["arguments"])

    def _dataset(self, data: Mapping[str, Any]) -> Any:
        """Returns a data set, made once for all its tasks."""
        key = json.dumps([data["dataset"], dict(data["arguments"])], sort_keys=True, default=str)
        if key not in self._datasets:
            core = require_module("aviary.core", "sojourn-worlds[aviary]", "aviary")
            name, arguments = data["dataset"], dict(data["arguments"])
            if ":" in name:
                self._datasets[key] = called(name, "aviary: dataset")(**arguments)
            else:
                try:
                    self._datasets[key] = core.TaskDataset.from_name(name, **arguments)
                except (ValueError, ImportError) as error:
                    raise ConfigError(f'aviary: dataset = "{name}" cannot be made: {error}') from error
        return self._datasets[key]

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(row.get("task"), str) and not self.arguments:
            return {"task": row["task"]}
        if isinstance(row.get("arguments"), Mapping):
            return {"arguments": {**self.arguments, **row["arguments"]}}
        raise ConfigError(
            f"aviary: the row {dict(row)} of {self.instructions} must have `arguments` (or a text `task`)"
        )


class AviaryPlay(NativeActions):
    """One episode: the environment and the calls made so far."""

    def __init__(self, world: Aviary, task: Task) -> None:
        self.world, self.task = world, task
        self.env: Any = None
        self.toolbox: Toolbox | None = None
        self.calls_made: list[list[ToolCall]] = []
        self.total_reward = 0.0
        self.done = False

    async def start(self) -> Observation:
        self.env = self.world.build(self.task)
        messages, tools = await self.env.reset()
        self.toolbox = Toolbox.of(map(_tool, tools), self.world.form, f"aviary: {self._name()}")
        self.offer_native_actions()
        system_texts = [message.content for message in messages if message.role == "system" and message.content]
        system = self.toolbox.system_messages(self.world.system, *system_texts)
        user_messages = tuple(Message(Role.USER, m.content or "") for m in messages if m.role != "system")
        return Observation(user_messages or (Message(Role.USER, "Begin."),), system=system, tools=self.toolbox.tools)

    async def step(self, agent: str, action: Message) -> Step:
        if self.done or self.toolbox is None:
            raise InfrastructureError(f"{self._name()} was given an action after its end: play each world once")
        calls = self.toolbox.read(action)
        self.calls_made.append(calls)
        try:
            response, reward, done, truncated = await self._apply(calls)
            messages = _answers(action, calls, response)
        except ValueError as error:
            reward, done, truncated = 0.0, False, False
            messages = tuple(answer(call, f"error: {error}") for call in (calls if action.calls else (None,)))
            info = {"error": 1.0}
        else:
            info = {"error": 0.0}
        self.total_reward += float(reward)
        if not math.isfinite(self.total_reward):
            raise InfrastructureError(f"{self._name()} gave the reward {reward}: expected a finite number")
        rewards = {agent: float(reward) * self.world.scale}
        truncated = bool(truncated) or len(self.calls_made) >= self.world.turns
        if done or truncated:
            self.done = True
            won = self.total_reward > self.world.solved
            return Step(None, rewards, done=True, success=won, info={**info, "truncated": float(not done)})
        return Step(Observation(messages, tools=self.toolbox.tools), rewards, info=info)

    async def close(self) -> None:
        env, self.env, self.done = self.env, None, True
        if env is not None:
            await settled(env.close())

    async def fork(self) -> AviaryPlay:
        twin = copy.copy(self)
        twin.calls_made = list(self.calls_made)
        if self.world.forks == "copy":
            try:
                twin.env = copy.deepcopy(self.env)
                return twin
            except UNCOPIABLE:  # it holds a connection, a lock, a handle of C
                pass
        twin.env = self.world.build(self.task)
        try:
            await twin.env.reset()
            for calls in self.calls_made:
                with suppress(ValueError):  # as it was then
                    await twin._apply(calls)
        except BaseException:  # cancellation included: nobody else knows the environment
            await twin.close()
            raise
        return twin

    async def _apply(self, calls: Sequence[ToolCall]) -> Any:
        from aviary.core import ToolCall as Call
        from aviary.core import ToolCallFunction, ToolRequestMessage

        made = [
            Call(
                id=call.id or f"{len(self.calls_made)}-{i}",
                function=ToolCallFunction(name=call.name, arguments=dict(call.arguments)),
            )
            for i, call in enumerate(calls)
        ]
        return await self.env.step(ToolRequestMessage(tool_calls=made))

    def _name(self) -> str:
        return self.task.data.get("dataset") or self.task.data["env"]


class AviaryPlayWithExpert(AviaryPlay):
    async def expert(self) -> str:
        return await settled(called(self.world.expert, "aviary: expert")(self.env))


def _tool(tool: Any) -> Tool:
    parameters = tool.info.parameters
    schema = {"type": "object", "properties": {}} if parameters is None else parameters.model_dump(exclude_none=True)
    return Tool(tool.info.name, tool.info.description, schema)


def _answers(action: Message, calls: Sequence[ToolCall], response: Sequence[Any]) -> tuple[Message, ...]:
    """Returns the environment's messages, as answers to structured calls where it says which call each answers."""
    ids = {call.id for call in calls if call.id}
    messages: list[Message] = []
    for message in response:
        answered = getattr(message, "tool_call_id", None)
        if action.calls and message.role == "tool":
            messages.append(
                Message(Role.TOOL, message.content or "", answers=answered if answered in ids else message.name)
            )
        else:
            messages.append(Message(Role.USER, message.content or ""))
    return tuple(messages) or (Message(Role.USER, "done"),)
