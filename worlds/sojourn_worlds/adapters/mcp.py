"""Servers of the Model Context Protocol (modelcontextprotocol.io) as worlds; package `mcp`, 1.x and 2.x alike.

A task is a row of the user's file, with an instruction. An action is one or several calls of the server's tools, or
`finish`, which ends the episode; an observation is the tools' results. The reward is the user's checker's, or 1 for the
expected answer; without `finish` the episode ends after `turns` actions, without reward.

The tools are the server's; the tasks and how they are judged are the user's. Resources, prompts, sampling and
elicitation are not offered to the agent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from sojourn.call_text import answer
from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.calls import parse_call, settled, short
from sojourn.envs.variables import check_variables
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks.splits import first_seed
from sojourn.types import Message, Observation, Role, Step, Task, Tool
from sojourn_worlds.adapters.hooks import called
from sojourn_worlds.adapters.listed import listed, same
from sojourn_worlds.adapters.mcp_session import Called, Session
from sojourn_worlds.adapters.toolbox import FORMS, Form, NativeActions, Toolbox

FINISH = Tool(
    "finish",
    "Ends the task; the answer is the one that the task asks for, if it asks for one.",
    {"type": "object", "properties": {"answer": {"type": ["string", "number"], "default": ""}}},
)


@dataclass(frozen=True)
class Finished:
    """The input of a checker: the row of the task, the agent's answer and calls, and the world as it was left.

    `call` calls any tool of the server, those too that are hidden from the agent; `folder` is the episode's own.
    """

    task: Mapping[str, Any]
    answer: str | float
    calls: tuple[Called, ...]
    call: Any  # async (name, **arguments) -> Called
    folder: Path


@dataclass(frozen=True, kw_only=True)
class MCP:
    """Any MCP server as a world: a `command` that is run for every play, or the `url` of one that runs (streamable
    HTTP), whose plays share whatever it keeps.

    `instructions` is a file of tasks, JSON lines or TOML (`[[task]]`): each has an `instruction`, and may have an
    `answer` (what is to be handed to `finish`), a `solution`, a `split` ("train" or "test"; without it every fifth is
    for testing), and what else your checker needs. A `solution` is the expert's calls, a list of texts in the form in
    which the agent may write calls, each made in a turn of its own:
    `"solution": ["transfer('ada', 'bob', amount=5)", "finish()"]`. A final `finish()` may be left out where no answer
    is asked for. `check` is "module:function" of a
    `Finished`, which gives the reward, a number in [-1, 1] or a bool; it may be a coroutine. Without it, the reward is
    1 for the expected answer.

    In the command and in `environment`, `{folder}` is a folder of the play's own, deleted with it, and any key of the
    task in braces its value. The server sees no other variables than HOME, PATH and the like. In `environment`,
    `headers` and `url`, `${NAME}` is the value of our environment variable NAME: keys are given so, and are in no
    record; where a tool says one, the agent reads its name. `tools` are those that
    the agent may call (empty: all), without `hidden` ones. `turns` ends the episode, without reward. Every call and the
    start may take `timeout_s`.
    """

    instructions: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    check: str = ""
    system: str = ""
    tools: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    form: Form = "both"
    turns: Annotated[int, Range(1)] = 20
    timeout_s: Annotated[float, Range(above=0)] = 30.0

    about: ClassVar[About] = About(
        source="Model Context Protocol, modelcontextprotocol.io, by its Python SDK (1.x or 2.x)",
        licence="MIT (SDK; a server has its own)",
        extra="mcp",
    )

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ConfigError("mcp: give either a command that starts the server, or the url of one that runs")
        if self.form not in FORMS:
            raise ConfigError(f"mcp: form = {self.form!r}, but it must be one of {', '.join(FORMS)}")
        if self.turns < 1 or not self.timeout_s > 0:
            raise ConfigError(f"mcp: turns = {self.turns}, timeout_s = {self.timeout_s}: both must be above 0")
        named = {name: getattr(self, name) for name in ("command", "environment", "url", "headers")}
        check_variables("mcp", {**named, "command": list(self.command)})
        if self.check:
            called(self.check, "mcp: check")
        rows = listed(self.instructions, "mcp", "train") + listed(self.instructions, "mcp", "test")
        for row in rows:
            if not isinstance(row.get("instruction"), str):
                raise ConfigError(f'mcp: the task {short(row)} of {self.instructions} has no text "instruction"')
            if not self.check and "answer" not in row:
                raise ConfigError(f"mcp: the task {short(row)} has no answer: give it one, or name a `check`")
            if "solution" in row:
                _require_calls(row["solution"], self.instructions)

    def tasks(self, split: str) -> Sequence[Task]:
        first = first_seed("mcp", split)
        rows = listed(self.instructions, "mcp", split)
        return [Task("mcp", row, int(row.get("seed", first + i)), split) for i, row in enumerate(rows)]

    def make(self, task: Task) -> MCPPlay:
        return (MCPPlayWithExpert if "solution" in task.data else MCPPlay)(self, task)


class MCPPlay(NativeActions):
    """One episode: a session with the server, and the calls made in it."""

    def __init__(self, world: MCP, task: Task) -> None:
        self.world, self.task = world, task
        self.session: Session | None = None
        self.toolbox: Toolbox | None = None
        self.calls: list[Called] = []
        self.turns_taken = 0
        self.done = False
        if world.command:
            self.fork = self._fork

    async def start(self) -> Observation:
        self.session = Session(self.world, self.task.data)
        offered = await self.session.open()
        chosen = [t for t in offered if t.name not in self.world.hidden]
        if self.world.tools:
            if unknown := set(self.world.tools) - {tool.name for tool in chosen}:
                raise ConfigError(f"mcp: the server has no tool {min(unknown)}: it has {_names(chosen)}")
            chosen = [tool for tool in chosen if tool.name in self.world.tools]
        self.toolbox = Toolbox.of([*chosen, FINISH], self.world.form, "mcp: the server")
        self.offer_native_actions()
        system = self.toolbox.system_messages(self.world.system, self.session.instructions)
        asked = Message(Role.USER, self.task.data["instruction"])
        return Observation((asked,), system=system, tools=self.toolbox.tools)

    async def step(self, agent: str, action: Message) -> Step:
        if self.done or self.toolbox is None:
            raise InfrastructureError("an mcp world was given an action after its end: play each world once")
        calls = self.toolbox.read(action)
        self.turns_taken += 1
        answers: list[Message] = []
        failed = False
        for call in calls:
            if call.name == FINISH.name:
                self.done = True
                reward = await self._judged(call.arguments.get("answer", ""))
                info = {"error": float(failed)} if answers else {}
                return Step(None, {agent: reward}, done=True, success=reward > 0, info=info)
            made = await self.call(call.name, **call.arguments)
            self.calls.append(made)
            failed = failed or made.error
            answers.append(answer(call if action.calls else None, f"error: {made.text}" if made.error else made.text))
        if self.turns_taken >= self.world.turns:
            self.done = True
            info = {"truncated": 1.0, "error": float(failed)}
            return Step(None, {agent: 0.0}, done=True, success=False, info=info)
        seen = Observation(tuple(answers), tools=self.toolbox.tools)
        return Step(seen, {agent: 0.0}, info={"error": float(failed)})

    async def call(self, name: str, /, **arguments: Any) -> Called:
        if self.session is None:
            raise InfrastructureError("the mcp world is closed, or was not started")
        return await self.session.call(name, arguments)

    async def close(self) -> None:
        session, self.session, self.done = self.session, None, True
        if session is not None:
            await session.close()

    async def _fork(self) -> MCPPlay:
        """Starts a new server and makes the same calls again: the states are equal where the server is
        deterministic."""
        twin = type(self)(self.world, self.task)
        try:
            await twin.start()
            for made in self.calls:
                twin.calls.append(await twin.call(made.name, **made.arguments))
        except BaseException:  # cancellation included: nobody else knows the server
            await twin.close()
            raise
        twin.turns_taken, twin.done = self.turns_taken, self.done
        return twin

    async def _judged(self, given: str | float) -> float:
        if not self.world.check:
            return float(same(self.task.data["answer"], given))
        assert self.session is not None
        left = Finished(self.task.data, given, tuple(self.calls), self.call, self.session.folder)
        reward = await settled(called(self.world.check, "mcp: check")(left))
        if not isinstance(reward, (int, float)) or not math.isfinite(reward) or abs(reward) > 1:
            raise InfrastructureError(f"mcp: {self.world.check} gave {short(reward)}: return a number from -1 to 1")
        return float(reward)


class MCPPlayWithExpert(MCPPlay):
    def expert(self) -> str:
        """Returns the first call of the solution that was not made yet, in its order."""
        assert self.toolbox is not None
        made = [(call.name, dict(call.arguments)) for call in self.calls]
        for text in self.task.data["solution"]:
            call = self.toolbox.read(Message(Role.ASSISTANT, text))[0]
            if (call.name, dict(call.arguments)) not in made:
                return text
            made.remove((call.name, dict(call.arguments)))
        return "finish()"


def _require_calls(solution: Any, file: str) -> None:
    """Raises `ConfigError` unless a solution is a list of calls as text; its tools are known when a server runs."""
    try:
        if not isinstance(solution, list):
            raise ActionError(f"{short(solution)} is no list")
        for text in solution:
            if not isinstance(text, str):
                raise ActionError(f"{short(text)} is no text")
            parse_call(text, {})
    except ActionError as error:
        raise ConfigError(
            f"mcp: a solution in {file}: {error}: expected a list of calls as text, such as "
            "[\"transfer('ada', 'bob', amount=5)\", \"finish()\"]"
        ) from None


def _names(tools: Sequence[Tool]) -> str:
    return ", ".join(tool.name for tool in tools) or "none"
