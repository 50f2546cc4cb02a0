"""Resources servers of NeMo Gym (github.com/NVIDIA-NeMo/Gym), over HTTP; nothing of it needs to be installed here.

A task is a row of a data set. An action is one or several tool calls, or an answer, which ends the episode; an
observation is the tools' results. The reward is the server's verification of the whole response, times `scale`.

The protocol is that of its own simple agent: a row of a data set is given to /seed_session, tools are called by POST to
their names with the session's cookie, and /verify judges the whole response. It differs from that agent: a call that
does not fit its schema is refused before it is made, and an episode that runs out of turns is not judged.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.cookies import SimpleCookie
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from sojourn.call_text import answer
from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.calls import LONGEST_ACTION, settled, short
from sojourn.envs.fields import require_within
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks.splits import first_seed
from sojourn.types import Message, Observation, Role, Step, Task, Tool, ToolCall
from sojourn_worlds.adapters.hooks import called
from sojourn_worlds.adapters.listed import listed
from sojourn_worlds.adapters.toolbox import FORMS, Form, NativeActions, Toolbox, require_sendable

ANSWER = "Or say your answer in words: that ends the task."
CALLED = re.compile(r"\s*(\w+)\s*\(")


@dataclass(frozen=True, kw_only=True)
class NemoGym:
    """A resources server of NeMo Gym that runs at `url`, with the rows of a dataset of its own in `instructions`.

    The file is JSON lines as NeMo Gym has them: `responses_create_params` with input and tools, and what the server's
    verification needs. A row may have a `split`; without it every fifth is for testing. The agent calls tools; whatever
    it says that is no call is its answer, which the server judges.

    A reward is paid times `scale`: choose it so that rewards lie in [-1, 1]. An episode is a success where it is above
    `solved`. `turns` ends the episode without reward. A fork is a new session in which the same calls are made again.
    `expert` is "module:function" of (row, calls so far) that gives what to say. Every request may take `timeout_s`.
    """

    url: str
    instructions: str
    system: str = ""
    form: Form = "both"
    scale: Annotated[float, Range(above=0)] = 1.0
    solved: float = 0.0
    turns: Annotated[int, Range(1)] = 20
    timeout_s: Annotated[float, Range(above=0)] = 60.0
    expert: str = ""

    about: ClassVar[About] = About(
        source="NeMo Gym, NVIDIA 2025, github.com/NVIDIA-NeMo/Gym",
        licence="Apache-2.0 (NeMo Gym; a dataset has its own)",
    )

    def __post_init__(self) -> None:
        require_within("nemo_gym", self, {"turns": (1, 10**6)})
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f'nemo_gym: url = "{self.url}", but it must be such as "http://127.0.0.1:8000"')
        if self.form not in FORMS:
            raise ConfigError(f"nemo_gym: form = {self.form!r}, but it must be one of {', '.join(FORMS)}")
        if not self.timeout_s > 0 or not (math.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"nemo_gym: timeout_s = {self.timeout_s}, scale = {self.scale}: both must be above 0")
        if self.expert:
            called(self.expert, "nemo_gym: expert")
        for split in ("train", "test"):
            for row in listed(self.instructions, "nemo_gym", split):
                if "input" not in (row.get("responses_create_params") or {}):
                    raise ConfigError(f"nemo_gym: the row {short(row)} has no responses_create_params with an input")

    def tasks(self, split: str) -> Sequence[Task]:
        first = first_seed("nemo_gym", split)
        rows = listed(self.instructions, "nemo_gym", split)
        return [Task("nemo_gym", row, first + i, split) for i, row in enumerate(rows)]

    def make(self, task: Task) -> NemoGymPlay:
        return (NemoGymPlayWithExpert if self.expert else NemoGymPlay)(self, task)


@dataclass
class Session:
    """An HTTP session, which the server knows by its cookie."""

    url: str
    timeout_s: float
    cookies: dict[str, str] = field(default_factory=dict)

    async def post(self, path: str, body: Any) -> tuple[int, str]:
        """Returns the status and text of a reply; raises `InfrastructureError` where there is none, or the server
        itself failed.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                status, text = await asyncio.to_thread(self._post, path, json.dumps(body))
        except (OSError, http.client.HTTPException, TimeoutError) as error:
            reason = str(error) or f"no answer within {self.timeout_s:g} s"
            raise InfrastructureError(f"nemo_gym: {self.url}/{path} cannot be reached ({reason}): is it up?") from error
        if status >= 500:
            raise InfrastructureError(f"nemo_gym: {self.url}/{path} failed with {status}: {text[:300]}")
        return status, text

    def _post(self, path: str, body: str) -> tuple[int, str]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout_s)
        headers = {"content-type": "application/json"}
        if self.cookies:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request("POST", f"{parts.path.rstrip('/')}/{path}", body, headers)
            reply = connection.getresponse()
            text = reply.read().decode(errors="replace")
            for line in reply.headers.get_all("set-cookie") or ():
                self.cookies |= {name: morsel.value for name, morsel in SimpleCookie(line).items()}
            return reply.status, text
        finally:
            connection.close()


class NemoGymPlay(NativeActions):
    """One episode: a session, and the response as it grows."""

    def __init__(self, world: NemoGym, task: Task) -> None:
        self.world, self.task = world, task
        self.session = Session(world.url.rstrip("/"), world.timeout_s)
        self.toolbox: Toolbox | None = None
        self.calls: list[ToolCall] = []
        self.output: list[dict[str, Any]] = []
        self.turns_taken = 0
        self.done = False

    async def start(self) -> Observation:
        asked = self.task.data["responses_create_params"]
        status, text = await self.session.post("seed_session", dict(self.task.data))
        if status >= 400:
            raise InfrastructureError(f"nemo_gym: the server refused the row ({status}): {text[:300]}")
        tools = [_tool(tool) for tool in asked.get("tools") or () if tool.get("type") == "function"]
        self.toolbox = Toolbox.of(tools, self.world.form, "nemo_gym") if tools else None
        self.offer_native_actions()
        given = asked["input"] if isinstance(asked["input"], list) else [{"role": "user", "content": asked["input"]}]
        messages = [_message(item) for item in given]
        system_texts = [m.text for m in messages if m.role is Role.SYSTEM]
        system_texts += [asked["instructions"]] if asked.get("instructions") else []
        system = self._system(system_texts)
        rest = tuple(m for m in messages if m.role is not Role.SYSTEM)
        return Observation(rest or (Message(Role.USER, "Begin."),), system=system, tools=self._tools())

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError(f"{self.world.url} was given an action after its end: play each world once")
        calls = self._read(action)
        self.turns_taken += 1
        if not calls:
            return await self._judged(agent, action.text)
        answers: list[Message] = []
        failed = False
        for call in calls:
            status, text = await self._call(call)
            failed = failed or status >= 400
            answers.append(answer(call if action.calls else None, f"error: {text}" if status >= 400 else text))
        info = {"error": float(failed)}
        if self.turns_taken >= self.world.turns:
            self.done = True
            return Step(None, {agent: 0.0}, done=True, success=False, info={**info, "truncated": 1.0})
        return Step(Observation(tuple(answers), tools=self._tools()), {agent: 0.0}, info=info)

    async def close(self) -> None:
        self.done = True

    async def fork(self) -> NemoGymPlay:
        twin = type(self)(self.world, self.task)
        await twin.start()
        for call in self.calls:
            await twin._call(call)
        twin.turns_taken, twin.done = self.turns_taken, self.done
        return twin

    def _read(self, action: Message) -> list[ToolCall]:
        """Returns the calls of an action; none where it is an answer."""
        match = CALLED.match(action.text)
        if action.calls or (self.toolbox is not None and match is not None and match[1] in self.toolbox.methods):
            if self.toolbox is None:
                raise ActionError("there are no tools to call, say your answer in words")
            return self.toolbox.read(action)
        if not action.text.strip() or len(action.text) > LONGEST_ACTION:
            raise ActionError(f"an answer must have from 1 to {LONGEST_ACTION} characters")
        require_sendable(action.text)
        return []

    def _native_action(self, text: str) -> Message:
        said = Message(Role.ASSISTANT, text)
        return replace(said, text="", calls=tuple(calls)) if (calls := self._read(said)) else said

    async def _call(self, call: ToolCall) -> tuple[int, str]:
        status, text = await self.session.post(call.name, dict(call.arguments))
        number = f"call_{len(self.calls)}"
        arguments = json.dumps(dict(call.arguments))
        made = {"type": "function_call", "name": call.name, "arguments": arguments, "call_id": number, "id": number}
        self.output.append({**made, "status": "completed"})
        self.output.append({"type": "function_call_output", "call_id": number, "output": text})
        self.calls.append(call)
        return status, text

    async def _judged(self, agent: str, text: str) -> Step:
        self.done = True
        content = [{"type": "output_text", "text": text, "annotations": []}]
        answer_item = {
            "type": "message",
            "id": "answer",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
        response = {
            "id": "response",
            "created_at": 0,
            "model": "policy",
            "object": "response",
            "output": [*self.output, answer_item],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": self.task.data["responses_create_params"].get("tools") or [],
        }
        status, body = await self.session.post("verify", {**self.task.data, "response": response})
        if status >= 400:
            raise InfrastructureError(f"nemo_gym: the server refused to verify ({status}): {body[:300]}")
        reward = json.loads(body).get("reward")
        if not isinstance(reward, (int, float)) or not math.isfinite(reward):
            raise InfrastructureError(f"nemo_gym: {self.world.url} gave the reward {reward!r}: expected a number")
        scaled_reward = float(reward) * self.world.scale
        return Step(None, {agent: scaled_reward}, done=True, success=reward > self.world.solved)

    def _system(self, system_texts: Sequence[str]) -> tuple[Message, ...]:
        if self.toolbox is None:
            system_text = "\n".join(filter(None, [self.world.system, *system_texts]))
            return (Message(Role.SYSTEM, system_text),) if system_text else ()
        messages = self.toolbox.system_messages(self.world.system, *system_texts)
        text = "\n".join([*(message.text for message in messages), ANSWER])
        return (Message(Role.SYSTEM, text),)

    def _tools(self) -> tuple[Tool, ...]:
        return self.toolbox.tools if self.toolbox is not None else ()


class NemoGymPlayWithExpert(NemoGymPlay):
    async def expert(self) -> str:
        return await settled(called(self.world.expert, "nemo_gym: expert")(self.task.data, tuple(self.calls)))


def _tool(declared: Mapping[str, Any]) -> Tool:
    parameters = declared.get("parameters") or {"type": "object", "properties": {}}
    return Tool(declared["name"], declared.get("description") or "", parameters)


def _message(item: Mapping[str, Any]) -> Message:
    content = item.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(part.get("text") or f"[{part.get('type')}]" for part in content)
    role = item.get("role", "user")
    return Message(Role.SYSTEM if role in ("system", "developer") else Role(role), content)
