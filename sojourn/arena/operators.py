"""Who may take a seat in the arena, behind one small protocol."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console

from sojourn.agents.person import HELP, Terminal
from sojourn.arena.text_seat import Spoken, SpokenSeat
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
    def sit(self, context: AgentContext, env: Any) -> Any: ...
    async def close(self) -> None: ...


@dataclass
class Simple:
    """An operator that holds nothing between its episodes."""

    name: str

    async def open(self, family: EnvFamily, limits: Limits) -> None: ...
    async def close(self) -> None: ...


@dataclass
class Expert(Simple):
    """The world's scripted expert."""

    async def open(self, family: EnvFamily, limits: Limits) -> None:
        if not await offers(family, "expert", limits):
            raise ConfigError(f"--operator {self.name}: this world has no expert(): leave it out, or give it one")

    def sit(self, context: AgentContext, env: Any) -> SpokenSeat:
        return SpokenSeat(context.name, ExpertVoice(env), context.trainable)


@dataclass(frozen=True)
class ExpertVoice:
    env: Any

    async def say(self, observation: Observation) -> Spoken:
        return Spoken(Message(Role.ASSISTANT, await expert_action(self.env)))


@dataclass
class Chance(Simple):
    """A random policy: any of the listed choices, else a call of any tool with invented arguments."""

    def sit(self, context: AgentContext, env: Any) -> SpokenSeat:
        rng = random.Random(f"{context.params.seed}/{context.name}")
        return SpokenSeat(context.name, ChanceVoice(self.name, rng), context.trainable)


@dataclass
class ChanceVoice:
    name: str
    rng: random.Random
    tools: tuple[Tool, ...] = ()

    async def say(self, observation: Observation) -> Spoken:
        self.tools = observation.tools or self.tools
        if observation.choices:
            return Spoken(Message(Role.ASSISTANT, self.rng.choice(observation.choices)))
        if not self.tools:
            raise ConfigError(
                f"--operator {self.name}: this world lists neither choices nor tools to choose from: leave it out, or "
                "let the world list them (many have choices=true)"
            )
        tool = self.rng.choice(self.tools)
        return Spoken(Message(Role.ASSISTANT, calls=(ToolCall(tool.name, invent(tool.parameters, self.rng)),)))


class LeftError(InfrastructureError):
    """The person left the game before its end."""


@dataclass
class Person(Simple):
    """Whoever sits at the terminal, which already shows what the world said."""

    console: Console
    stream: Any = None  # read instead of the terminal
    left: bool = False

    def sit(self, context: AgentContext, env: Any) -> SpokenSeat:
        return SpokenSeat(context.name, self.Voice(self, Terminal(env, self.console, self.stream)), context.trainable)

    @dataclass(frozen=True)
    class Voice:
        person: Person
        terminal: Terminal

        async def say(self, observation: Observation) -> Spoken:
            if observation.system:
                self.terminal.say(HELP, "dim")
            for number, choice in enumerate(observation.choices, start=1):
                self.terminal.say(f"  {number}  {choice}", "cyan")
            said = None if self.person.left else await self.terminal.ask(observation)
            if said is None:
                self.person.left = True
                raise LeftError("the person left")
            return Spoken(Message(Role.ASSISTANT, said))
