"""The world as a program sees it: its observations, and a place to send actions to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sojourn.gateway.requests import RequestError
from sojourn.types import Message, Observation, Role, Tool, ToolCall

ACT, SAY = "act", "say"  # tools for actions in text: where the world has no tools, and beside its own
TEXT = {"type": "string"}


class Shown(NamedTuple):
    """Holds the answer to an action: what is new in the world, or why the action was refused. `done` says that the
    episode is over."""

    messages: tuple[Message, ...] = ()
    refusal: str = ""
    done: bool = False

    @property
    def text(self) -> str:
        if self.refusal:
            return self.refusal
        text = "\n\n".join(message.text for message in self.messages if message.text)
        return text or ("The episode is over." if self.done else "(nothing new)")


@dataclass(eq=False)
class Action:
    """Holds an action of a program, the id of the model's call that it carries out (if the client tells it), and its
    answer."""

    message: Message
    call_id: str
    answer: asyncio.Future[Shown]


@dataclass(eq=False)
class WorldPort:
    """Takes the actions of one program to its seat, one after another, and the world's answers back."""

    observation: Observation
    over: bool = False
    _actions: asyncio.Queue[Action] = field(default_factory=asyncio.Queue[Action])
    _waiting: list[Action] = field(default_factory=list[Action])  # for their answers, the oldest first

    async def act(self, message: Message, call_id: str = "") -> Shown:
        """Sends an action, and returns what the world shows then."""
        if self.over:
            return Shown(done=True)
        action = Action(message, call_id, asyncio.get_running_loop().create_future())
        self._waiting.append(action)
        self._actions.put_nowait(action)
        return await asyncio.shield(action.answer)

    async def next_action(self) -> Action:
        """Returns the next action that the program sends."""
        return await self._actions.get()

    def sent(self) -> Action | None:
        """Returns the next action where it is sent already."""
        return None if self._actions.empty() else self._actions.get_nowait()

    def show(self, observation: Observation) -> None:
        """Answers the oldest action by what the world shows."""
        before = self.observation
        system, tools = observation.system or before.system, observation.tools or before.tools
        self.observation = replace(observation, system=system, tools=tools)
        self._answer(Shown(observation.messages))

    def refuse(self, reason: str) -> None:
        """Answers the oldest action by why it was refused; the world is as it was."""
        self._answer(Shown(refusal=reason))

    def close(self) -> None:
        """Answers all actions, and later ones, by the end of the episode."""
        self.over = True
        while self._waiting:
            self._answer(Shown(done=True))

    def _answer(self, shown: Shown) -> None:
        if self._waiting and not (answer := self._waiting.pop(0).answer).done():
            answer.set_result(shown)

    def tools(self) -> Sequence[Tool]:
        """Returns the tools by which a program acts: the world's, and one for actions in text."""
        own, choices = self.observation.tools, self.observation.choices
        schema = {**TEXT, "enum": list(choices)} if choices and not own else TEXT
        name, about = (SAY, "Says a text.") if own else (ACT, "Acts in the world; the action is a text.")
        if any(tool.name == name for tool in own):
            return own
        parameters = {"type": "object", "properties": {"text": schema}, "required": ["text"]}
        return (*own, Tool(name, about, parameters))

    def call(self, name: str, arguments: object) -> Message:
        """Returns the action that a call of a tool is; raises `RequestError` where it is none."""
        if not isinstance(arguments, Mapping):
            raise RequestError(f"the arguments of {name} are {arguments!r:.60}: expected an object", param="arguments")
        names = [tool.name for tool in self.tools()]
        if name not in names:
            raise RequestError(f"there is no tool {name!r:.60}: expected one of {', '.join(names)}", param="name")
        if name in (ACT, SAY) and all(tool.name != name for tool in self.observation.tools):
            if not isinstance(text := arguments.get("text"), str):
                raise RequestError(f"text = {text!r:.60}: {name} expects the action as a string", param="text")
            return Message(Role.ASSISTANT, text)
        return Message(Role.ASSISTANT, calls=(ToolCall(name, dict(arguments)),))
