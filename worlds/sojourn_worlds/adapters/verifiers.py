"""Environments of verifiers v1 (github.com/PrimeIntellect-ai/verifiers, 0.4), in an interpreter of their own.

A task is one of a taskset. An observation is the messages that the environment's harness sends to its model, and an
action is the model's reply, text or tool calls; the reward is the environment's score, times `scale`, and comes when
its rollout ends.

Taskset, harness, Env and scoring run as they are; what they take for their model is an endpoint on loopback, and every
completion that they request becomes an observation, the agent's action its reply (`bridged_verifiers`). Only the
harness writes the message history, and it may only grow: harnesses that rewrite it cannot be followed. Its pins rule
out installing it beside Sojourn's own packages, and what it starts per turn costs about a second.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Annotated, Any, ClassVar

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.calls import LONGEST_ACTION, settled
from sojourn.envs.fields import require_within
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks import Generated
from sojourn.tasks.splits import first_seed
from sojourn.types import Message, Observation, Role, Step, Task, Tool, ToolCall
from sojourn_worlds.adapters.child import Child, Interpreter
from sojourn_worlds.adapters.hooks import called
from sojourn_worlds.adapters.toolbox import Toolbox, require_sendable

ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
KEYS: dict[tuple[str, str], list[str]] = {}  # of tasksets that were listed in this process


@dataclass
class _Opened:
    """Holds what `Verifiers.open` shares among all episodes: one interpreter, started by the first of them."""

    child: Child | None = None
    uses: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    numbers: Any = field(default_factory=count)


@dataclass(frozen=True, kw_only=True)
class Verifiers:
    """Any environment of verifiers v1 with one agent, played in the interpreter `python` that has it (needs `open`).

    `taskset` is the id of an installed taskset, or of one in the folders `paths`; `config` is the rest of the Env's
    config, as its own TOML has it. Agents run as subprocesses with the harness "null" where it does not say otherwise;
    where it has several agents, all but one need a `client` of their own. `splits.train` and `splits.test` are given to
    the taskset besides, where given; else every fifth of its first `max_tasks` tasks is for testing.

    The interpreter gets our variables but for those that hold keys; those that it needs are in `environment`, as in
    `{ OPENAI_API_KEY = "${OPENAI_API_KEY}" }`.

    A reward is paid times `scale`: choose it so that rewards lie in [-1, 1]. An episode is a success where it is above
    `solved`. Tools are structured calls alone. `plays` is how many are held at once, `expert` a "module:function" of
    the messages so far that gives what to say. The start and every turn may take `timeout_s`.
    """

    python: str
    taskset: str
    config: Mapping[str, Any] = field(default_factory=dict)
    splits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    scale: Annotated[float, Range(above=0)] = 1.0
    solved: float = 0.0
    max_tasks: Annotated[int, Range(1)] = 10_000
    plays: Annotated[int, Range(1)] = 16
    timeout_s: Annotated[float, Range(above=0)] = 180.0
    expert: str = ""
    _opened: _Opened = field(default_factory=_Opened, init=False, repr=False, compare=False)

    about: ClassVar[About] = About(
        source="verifiers v1, Brown 2025, github.com/PrimeIntellect-ai/verifiers, 0.4",
        licence="MIT (verifiers; an environment and its data have their own)",
    )

    def __post_init__(self) -> None:
        require_within("verifiers", self, {"max_tasks": (1, 10**9), "plays": (1, 10**6)})
        if not self.taskset:
            raise ConfigError("verifiers: taskset is empty: give the id of a taskset")
        if set(self.splits) - {"train", "test"} or len(self.splits) == 1:
            raise ConfigError(f"verifiers: splits = {dict(self.splits)}: give what both train and test get")
        if not self.timeout_s > 0 or not (math.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"verifiers: timeout_s = {self.timeout_s}, scale = {self.scale}: both must be above 0")
        if self.expert:
            called(self.expert, "verifiers: expert")
        _ = self.interpreter

    @property
    def capacity(self) -> int:
        return self.plays

    @cached_property
    def interpreter(self) -> Interpreter:
        return Interpreter("verifiers", self.python, "verifiers==0.4.0 uv", self.paths, self.environment)

    def tasks(self, split: str) -> Generated:
        first = first_seed("verifiers", split)
        config = {**self.config, "taskset": {**self.config.get("taskset", {}), **self.splits.get(split, {})}}
        config["taskset"]["id"] = self.taskset
        keys = self._keys(config)
        numbers = [i for i in range(len(keys)) if self.splits or (i % 5 == 4) == (split == "test")]

        def task(i: int) -> Task:
            data = {"config": config, "index": numbers[i], "key": keys[numbers[i]]}
            return Task("verifiers", data, first + i, split)

        return Generated(task, len(numbers))

    def _keys(self, config: Mapping[str, Any]) -> list[str]:
        """Returns the keys of a taskset's tasks, asked once of an interpreter that is started for it."""
        asked = (self.interpreter.python, json.dumps([config, self.paths, self.max_tasks], sort_keys=True))
        if asked not in KEYS:
            KEYS[asked] = self.interpreter.ask_once("tasks", self.timeout_s, config=config, max_tasks=self.max_tasks)
        return KEYS[asked]

    def make(self, task: Task) -> VerifiersPlay:
        if not self._opened.uses:
            raise InfrastructureError("verifiers has no interpreter yet: await the family's open() before make()")
        return (VerifiersPlayWithExpert if self.expert else VerifiersPlay)(self, task)

    async def open(self) -> None:
        """Counts its users; may be called again, where each call needs its `close`."""
        self._opened.uses += 1

    async def close(self) -> None:
        async with self._opened.lock:
            self._opened.uses = max(0, self._opened.uses - 1)
            if self._opened.uses == 0 and self._opened.child is not None:
                child, self._opened.child = self._opened.child, None
                await child.close()

    async def child(self) -> Child:
        """Returns the interpreter; a new one where the last has died."""
        async with self._opened.lock:
            if self._opened.child is None or not self._opened.child.alive:
                if self._opened.child is not None:
                    await self._opened.child.close()
                self._opened.child = Child(self.interpreter)
                await self._opened.child.open(self.timeout_s)
            return self._opened.child

    def number(self) -> int:
        return next(self._opened.numbers)


class VerifiersPlay:
    """One episode: the conversation so far, and the tools that may be called now."""

    def __init__(self, world: Verifiers, task: Task) -> None:
        self.world, self.task = world, task
        self.child: Child | None = None
        self.number = -1
        self.heard: list[Message] = []
        self.toolbox: Toolbox | None = None
        self.done = False

    async def start(self) -> Observation:
        self.child = await self.world.child()
        self.number = self.world.number()
        data = self.task.data
        event = await self._ask("start", config=data["config"], index=data["index"])
        if "done" in event:
            raise InfrastructureError(f"verifiers: the episode ended before it asked for anything: {_ended(event)}")
        return self._observe(event)

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError(f"{self.world.taskset} was given an action after its end: play each world once")
        event = await self._ask("step", message=self._message(action))
        self.heard.append(action)
        if "done" not in event:
            return Step(self._observe(event), {agent: 0.0})
        self.done = True
        if not event["ok"] or event["reward"] is None:
            raise InfrastructureError(f"verifiers: the episode failed: {_ended(event)}")
        reward = float(event["reward"])
        if not math.isfinite(reward):
            raise InfrastructureError(f"{self.world.taskset} gave the reward {reward}: expected a finite number")
        metrics = {key: float(value) for key, value in event["metrics"].items()}
        won = reward > self.world.solved
        return Step(None, {agent: reward * self.world.scale}, done=True, success=won, info=metrics)

    async def close(self) -> None:
        child, self.child, self.done = self.child, None, True
        if child is not None and child.alive and self.number >= 0:
            await child.ask(self.number, "close", self.world.timeout_s)

    async def _ask(self, do: str, **arguments: Any) -> Any:
        if self.child is None:
            raise InfrastructureError("the verifiers world is closed, or was not started")
        return await self.child.ask(self.number, do, self.world.timeout_s, **arguments)

    def _message(self, action: Message) -> dict[str, Any]:
        """Returns an action as the message that a model would have replied with."""
        if not action.calls and not action.text.strip():
            raise ActionError("say something")
        if len(action.text) > LONGEST_ACTION:
            raise ActionError(f"{len(action.text)} characters are too many, say less")
        require_sendable(action.text)
        message: dict[str, Any] = {"role": "assistant", "content": action.text or None}
        if action.calls:
            if self.toolbox is None:
                raise ActionError("there are no tools to call, say it in words")
            message["tool_calls"] = [
                _wire(call, call.id or f"call-{len(self.heard)}-{i}")
                for i, call in enumerate(self.toolbox.read(action))
            ]
        return message

    def _observe(self, event: Mapping[str, Any]) -> Observation:
        tools = tuple(_tool(tool) for tool in event["tools"])
        self.toolbox = Toolbox.of(tools, "native", "verifiers") if tools else None
        messages = [_heard(message) for message in event["messages"]]
        first = not self.heard
        self.heard += messages
        system = tuple(m for m in messages if m.role is Role.SYSTEM) if first else ()
        new = tuple(m for m in messages if m not in system) or (Message(Role.USER, "Go on."),)
        return Observation(new, system=system, tools=tools)


class VerifiersPlayWithExpert(VerifiersPlay):
    async def expert(self) -> str:
        return await settled(called(self.world.expert, "verifiers: expert")(tuple(self.heard)))


def _heard(message: Mapping[str, Any]) -> Message:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(part.get("text") or f"[{part.get('type')}]" for part in content)
    if message["role"] == "tool":
        return Message(Role.TOOL, content, answers=message.get("tool_call_id"))
    return Message(ROLES.get(message["role"], Role.USER), content)


def _tool(declared: Mapping[str, Any]) -> Tool:
    function = declared["function"]
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return Tool(function["name"], function.get("description") or "", parameters)


def _wire(call: ToolCall, number: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
    return {"id": number, "type": "function", "function": function}


def _ended(event: Mapping[str, Any]) -> str:
    return "; ".join(event["errors"]) or f"it stopped with {event['stop']}"
