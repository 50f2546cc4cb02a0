"""Who may take a seat in the arena, behind one small protocol."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console

from sojourn.agents.person import HELP, Terminal
from sojourn.arena.text_seat import TextReply, TextSeat
from sojourn.checks.env.play import invent
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.protocols import AgentContext, EnvFamily
from sojourn.rollout.play import Limits, expert_action
from sojourn.rollout.world import offers
from sojourn.types import Message, Observation, Role, Tool, ToolCall


class Operator(Protocol):
    """Fills a seat in many episodes, several at once. `name` is how it is called beside the others.

    `open` makes it ready to play a world, and raises ConfigError where it never can; `sit` gives the seat of one
    episode, as `play` asks it, from the context's name, seed and place; what can break while it acts raises
    InfrastructureError; `close` gives up what `open` took.
    """

    name: str

    async def open(self, family: EnvFamily, limits: Limits) -> None: ...
    def seat(self, context: AgentContext, env: Any) -> Any: ...
    async def close(self) -> None: ...


@dataclass
class StatelessOperator:
    """An operator that holds nothing between its episodes."""

    name: str

    async def open(self, family: EnvFamily, limits: Limits) -> None: ...
    async def close(self) -> None: ...


@dataclass
class ExpertOperator(StatelessOperator):
    """The world's scripted expert."""

    async def open(self, family: EnvFamily, limits: Limits) -> None:
        if not await offers(family, "expert", limits):
            raise ConfigError(f"--operator {self.name}: this world has no expert(): leave it out, or give it one")

    def seat(self, context: AgentContext, env: Any) -> TextSeat:
        return TextSeat(context.name, ExpertSpeaker(env), context.trainable)


@dataclass(frozen=True)
class ExpertSpeaker:
    env: Any

    async def reply(self, observation: Observation) -> TextReply:
        return TextReply(Message(Role.ASSISTANT, await expert_action(self.env)))


@dataclass
class RandomOperator(StatelessOperator):
    """A random policy: any of the listed choices, else a call of any tool with invented arguments."""

    def seat(self, context: AgentContext, env: Any) -> TextSeat:
        rng = random.Random(f"{context.params.seed}/{context.name}")
        return TextSeat(context.name, RandomSpeaker(self.name, rng), context.trainable)


@dataclass
class RandomSpeaker:
    name: str
    rng: random.Random
    tools: tuple[Tool, ...] = ()

    async def reply(self, observation: Observation) -> TextReply:
        self.tools = observation.tools or self.tools
        if observation.choices:
            return TextReply(Message(Role.ASSISTANT, self.rng.choice(observation.choices)))
        if not self.tools:
            raise ConfigError(
                f"--operator {self.name}: this world lists neither choices nor tools to choose from: leave it out, or "
                "let the world list them (many have choices=true)"
            )
        tool = self.rng.choice(self.tools)
        return TextReply(Message(Role.ASSISTANT, calls=(ToolCall(tool.name, invent(tool.parameters, self.rng)),)))


class PersonLeftError(InfrastructureError):
    """The person left the game before its end."""


@dataclass
class PersonOperator(StatelessOperator):
    """Whoever sits at the terminal, which already shows what the world said."""

    console: Console
    stream: Any = None  # read instead of the terminal
    left: bool = False

    def seat(self, context: AgentContext, env: Any) -> TextSeat:
        return TextSeat(context.name, self.Voice(self, Terminal(env, self.console, self.stream)), context.trainable)

    @dataclass(frozen=True)
    class Voice:
        person: PersonOperator
        terminal: Terminal

        async def reply(self, observation: Observation) -> TextReply:
            if observation.system:
                self.terminal.say(HELP, "dim")
            for number, choice in enumerate(observation.choices, start=1):
                self.terminal.say(f"  {number}  {choice}", "cyan")
            said = None if self.person.left else await self.terminal.ask(observation)
            if said is None:
                self.person.left = True
                raise PersonLeftError("the person left")
            return TextReply(Message(Role.ASSISTANT, said))
