"""Environments that are served by OpenEnv (github.com/meta-pytorch/OpenEnv, 0.10), over its WebSocket.

A task is a seed, or a row of a file. An action is a call of `act` with the fields that the server declares, or a text;
an observation is the server's, as a list of its fields or by a function of the user's. Rewards are the server's, times
`scale`; the episode ends when the server says so, or after `turns` actions.

We speak its protocol ourselves, so nothing of it needs to be installed here: the client that it comes with brings half
a gigabyte and pins of its own. A session lives as long as its connection; over plain HTTP a reset and the steps after
it would not share one. Environments whose actions are MCP tools (`call_tool`) take them as any other action.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from sojourn.call_text import answer
from sojourn.config.fields import Range
from sojourn.envs.about import About, require_module
from sojourn.envs.calls import LONGEST_ACTION, as_text, settled, short
from sojourn.envs.fields import SIZES, require_within
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks.splits import first_seed, make_tasks_from_data
from sojourn.types import Message, Observation, Role, Step, Task, Tool
from sojourn_worlds.adapters.hooks import called
from sojourn_worlds.adapters.listed import listed
from sojourn_worlds.adapters.toolbox import FORMS, Form, NativeActions, Toolbox

LARGEST_MESSAGE_BYTES = 2**26


@dataclass(frozen=True, kw_only=True)
class OpenEnv:
    """Any environment that an OpenEnv server offers at `url`, such as `http://127.0.0.1:8000`.

    An action is a call of `act` with the fields that the server declares, or, where `text` names one of them, whatever
    the agent says. A task is a seed, or a row of the file `instructions` (JSON lines or TOML), whose keys are given to
    reset. `describe` is "module:function" of an observation (a dict) that says it; without it, its fields are listed.

    A reward is paid times `scale`: choose it so that rewards lie in [-1, 1]. An episode is a success where the sum of
    its rewards before scaling is above `solved`. `turns` ends the episode without further reward. A fork is a new
    session in which the same is done again, so the environment has to follow its seed. `sessions` is how many plays
    the server holds at once, its own `max_concurrent_envs`. `expert` is "module:function" of an observation that gives
    an action as text. The start and every step may take `timeout_s`.
    """

    url: str
    instructions: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    describe: str = ""
    system: str = ""
    form: Form = "both"
    scale: Annotated[float, Range(above=0)] = 1.0
    solved: float = 0.0
    turns: Annotated[int, Range(1)] = 20
    sessions: Annotated[int, Range(1)] = 8
    timeout_s: Annotated[float, Range(above=0)] = 60.0
    expert: str = ""
    train: Annotated[int, Range(1)] = 100_000
    test: Annotated[int, Range(1)] = 1_000
    _schema: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    about: ClassVar[About] = About(
        source="OpenEnv, github.com/meta-pytorch/OpenEnv, 0.10",
        licence="BSD-3-Clause (OpenEnv; an environment has its own)",
        extra="openenv",
    )

    def __post_init__(self) -> None:
        require_within("openenv", self, {"turns": (1, 10**6), "sessions": (1, 10**6), **SIZES})
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f'openenv: url = "{self.url}", but it must be such as "http://127.0.0.1:8000"')
        if self.form not in FORMS:
            raise ConfigError(f"openenv: form = {self.form!r}, but it must be one of {', '.join(FORMS)}")
        if not self.timeout_s > 0 or not (math.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"openenv: timeout_s = {self.timeout_s}, scale = {self.scale}: both must be above 0")
        for key in ("describe", "expert"):
            if getattr(self, key):
                called(getattr(self, key), f"openenv: {key}")
        if self.instructions:
            listed(self.instructions, "openenv", "train")

    @property
    def capacity(self) -> int:
        return self.sessions

    def tasks(self, split: str) -> Sequence[Task]:
        first = first_seed("openenv", split)
        if self.instructions:
            rows = listed(self.instructions, "openenv", split)
            return [Task("openenv", {**self.options, **row}, first + i, split) for i, row in enumerate(rows)]
        return make_tasks_from_data("openenv", self, split, self.options)

    def make(self, task: Task) -> OpenEnvPlay:
        return (OpenEnvPlayWithExpert if self.expert else OpenEnvPlay)(self, task)

    async def schema(self) -> Mapping[str, Any]:
        """Returns what the server declares of its actions, asked once."""
        if not self._schema:
            schema = await asyncio.to_thread(_fetched, f"{self.url.rstrip('/')}/schema", self.timeout_s)
            self._schema.update(schema["action"])
        return self._schema


class OpenEnvPlay(NativeActions):
    """One episode: a connection, and the actions so far."""

    def __init__(self, world: OpenEnv, task: Task) -> None:
        self.world, self.task = world, task
        self.socket: Any = None
        self.toolbox: Toolbox | None = None
        self.last_observation: Mapping[str, Any] = {}
        self.actions_taken: list[Mapping[str, Any]] = []
        self.total_reward = 0.0
        self.done = False

    async def start(self) -> Observation:
        self.toolbox = Toolbox.of([_act(await self.world.schema())], self.world.form, "openenv")
        if not self.world.text:
            self.offer_native_actions()
        if self.world.text and self.world.text not in self.toolbox.methods["act"].hints:
            raise ConfigError(
                f'openenv: text = "{self.world.text}", but an action has {", ".join(self.toolbox.methods["act"].hints)}'
            )
        await self._connect()
        text = await self._describe()
        if self.world.text:
            system = (Message(Role.SYSTEM, self.world.system),) if self.world.system else ()
            return Observation((Message(Role.USER, text),), system=system)
        system = self.toolbox.system_messages(self.world.system)
        return Observation((Message(Role.USER, text),), system=system, tools=self.toolbox.tools)

    async def step(self, agent: str, action: Message) -> Step:
        if self.done or self.toolbox is None:
            raise InfrastructureError(f"{self.world.url} was given an action after its end: play each world once")
        call, data = None, self._in_words(action)
        if data is None:
            calls = self.toolbox.read(action)
            if len(calls) > 1:
                raise ActionError("say one call at a time")
            call, data = calls[0], calls[0].arguments
        reply = await self._ask("step", data)
        self.actions_taken.append(data)
        self.last_observation = reply["observation"]
        reward = float(reply.get("reward") or 0.0)
        self.total_reward += reward
        if not math.isfinite(self.total_reward):
            raise InfrastructureError(f"{self.world.url} gave the reward {reward}: expected a finite number")
        rewards = {agent: reward * self.world.scale}
        done = bool(reply.get("done"))
        if done or len(self.actions_taken) >= self.world.turns:
            self.done = True
            won = self.total_reward > self.world.solved
            return Step(None, rewards, done=True, success=won, info={"truncated": float(not done)})
        text = await self._describe()
        message = answer(call if action.calls else None, text)
        return Step(Observation((message,), tools=() if self.world.text else self.toolbox.tools), rewards)

    async def close(self) -> None:
        socket, self.socket, self.done = self.socket, None, True
        if socket is not None:
            await socket.close()

    async def fork(self) -> OpenEnvPlay:
        twin = type(self)(self.world, self.task)
        twin.toolbox = self.toolbox
        if not self.world.text:
            twin.offer_native_actions()
        try:
            await twin._connect()
            for data in self.actions_taken:
                twin.last_observation = (await twin._ask("step", data))["observation"]
            if self.last_observation and _shown(twin.last_observation) != _shown(self.last_observation):
                raise InfrastructureError(
                    f"openenv: {self.world.url} does not follow its seed: what was done again for a fork gave another "
                    f"observation after {len(self.actions_taken)} actions"
                )
        except BaseException:  # cancellation included: nobody else knows the session
            await twin.close()
            raise
        twin.actions_taken, twin.total_reward, twin.done = list(self.actions_taken), self.total_reward, self.done
        return twin

    def state_key(self) -> str:
        """Identifies what is seen, and how many turns are left."""
        seen = json.dumps(self.last_observation, sort_keys=True, default=str)
        return hashlib.sha256(f"{seen}/{self.world.turns - len(self.actions_taken)}".encode()).hexdigest()[:16]

    async def _connect(self) -> None:
        """Opens a session of our own, reset to the task."""
        client = require_module("websockets.asyncio.client", "sojourn-worlds[openenv]", "openenv")
        address = f"ws{self.world.url.rstrip('/').removeprefix('http')}/ws"
        try:
            self.socket = await client.connect(
                address, open_timeout=self.world.timeout_s, max_size=LARGEST_MESSAGE_BYTES, proxy=None
            )
        except (OSError, TimeoutError, _broken()) as error:
            raise InfrastructureError(
                f"openenv: {self.world.url} cannot be reached ({error}): is it running?"
            ) from error
        reply = await self._ask("reset", {"seed": self.task.seed, **self.task.data})
        if reply.get("done"):
            raise InfrastructureError(f"openenv: {self.world.url} was over before the first action")
        self.last_observation = reply["observation"]

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sends one message and returns its answer; raises `ActionError` where an action does not fit its fields."""
        try:
            async with asyncio.timeout(self.world.timeout_s):
                await self.socket.send(json.dumps({"type": kind, "data": dict(data)}))
                reply = json.loads(await self.socket.recv())
        except TimeoutError:
            raise InfrastructureError(
                f"openenv: {self.world.url} did not answer within {self.world.timeout_s:g} s"
            ) from None
        except (OSError, ValueError, _broken()) as error:
            raise InfrastructureError(f"openenv: {self.world.url} broke off ({error})") from error
        payload = reply.get("data", {})
        if reply.get("type") == "error":
            if payload.get("code") == "VALIDATION_ERROR" and kind == "step":
                raise ActionError(f"the action does not fit: {_wrong(payload)}")
            raise InfrastructureError(
                f"openenv: {self.world.url} failed ({payload.get('code')}: {payload.get('message')})"
            )
        return payload

    def _in_words(self, action: Message) -> Mapping[str, Any] | None:
        if not self.world.text or action.calls:
            return None
        if not action.text.strip() or len(action.text) > LONGEST_ACTION:
            raise ActionError(f"an action must have from 1 to {LONGEST_ACTION} characters")
        return {self.world.text: action.text}

    async def _describe(self) -> str:
        if self.world.describe:
            return str(await settled(called(self.world.describe, "openenv: describe")(self.last_observation)))
        fields = _shown(self.last_observation)
        if len(fields) == 1:
            return as_text(next(iter(fields.values())))
        return "\n".join(f"{key}: {as_text(value)}" for key, value in fields.items()) or "done"


class OpenEnvPlayWithExpert(OpenEnvPlay):
    async def expert(self) -> str:
        return await settled(called(self.world.expert, "openenv: expert")(self.last_observation))


def _shown(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an observation that have a value, without those for programs, which may hold times."""
    return {key: value for key, value in observation.items() if key != "metadata" and value is not None}


def _act(schema: Mapping[str, Any]) -> Tool:
    """Returns the server's action as a tool, without the fields that are for programs."""
    fields = {key: value for key, value in schema.get("properties", {}).items() if key != "metadata"}
    required = [key for key in schema.get("required", ()) if key in fields]
    parameters = {**schema, "type": "object", "properties": fields, "required": required}
    return Tool("act", schema.get("description", ""), parameters)


def _wrong(data: Mapping[str, Any]) -> str:
    errors = data.get("errors") or [{}]
    where = ".".join(map(str, errors[0].get("loc", ())))
    return short(f"{where}: {errors[0].get('msg', data.get('message'))}")


def _fetched(url: str, timeout_s: float) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as reply:
            return json.loads(reply.read(LARGEST_MESSAGE_BYTES))
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise InfrastructureError(f"openenv: {url} cannot be read ({error}): is the server running?") from error


def _broken() -> type[Exception]:
    return require_module("websockets.exceptions", "sojourn-worlds[openenv]", "openenv").WebSocketException
