"""The protocol of an arena operator, and the simple ones: the expert, a random policy, and a person."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console

from sojourn.agents.person import HELP, Terminal
from sojourn.agents.text_seat import TextReply, TextSeat
from sojourn.checks.env.play import invent
from sojourn.envs.expert import expert_action
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.protocols import AgentContext, EnvFamily
from sojourn.rollout.limits import Limits
from sojourn.sources.play_abilities import PlayAbilities
from sojourn.types import Message, Observation, Role, Tool, ToolCall


class Operator(Protocol):
    """Plays in many episodes, several at once. `name` identifies it among the operators of a match.

    `open` prepares it for an environment family, and raises ConfigError if it cannot play there. `seat` returns the
    seat of one episode, which raises InfrastructureError if the operator breaks. `close` releases what `open` acquired.
    """

    name: str

    async def open(self, family: EnvFamily, limits: Limits) -> None: ...
    def seat(self, context: AgentContext, env: Any) -> Any: ...
    async def close(self) -> None: ...


@dataclass
class StatelessOperator:
    """An operator that keeps no resources between episodes."""

    name: str

    async def open(self, family: EnvFamily, limits: Limits) -> None: ...
    async def close(self) -> None: ...


@dataclass
class ExpertOperator(StatelessOperator):
    """Plays the actions of the environment's scripted expert."""

    async def open(self, family: EnvFamily, limits: Limits) -> None:
        if without := await PlayAbilities(family, limits).lacking("expert"):
            raise ConfigError(f"--operator {self.name}: {without} has no expert(): leave this operator out")

    def seat(self, context: AgentContext, env: Any) -> TextSeat:
        return TextSeat(context.name, ExpertSpeaker(env), context.trainable)


@dataclass(frozen=True)
class ExpertSpeaker:
    env: Any

    async def reply(self, observation: Observation) -> TextReply:
        return TextReply(Message(Role.ASSISTANT, await expert_action(self.env)))


@dataclass
class RandomOperator(StatelessOperator):
    """Plays a random choice of the observation, or calls a random tool with generated arguments if none are listed."""

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
                f"--operator {self.name}: this environment lists neither choices nor tools: leave this operator out, "
                "or let the environment list its actions (many have choices=true)"
            )
        tool = self.rng.choice(self.tools)
        return TextReply(Message(Role.ASSISTANT, calls=(ToolCall(tool.name, invent(tool.parameters, self.rng)),)))


class PersonLeftError(InfrastructureError):
    """The person left before the end of the episode."""


@dataclass
class PersonOperator(StatelessOperator):
    """Lets a person enter the actions at the terminal, where the match display already shows the observations."""

    console: Console
    stream: Any = None  # read instead of the terminal
    left: bool = False

    def seat(self, context: AgentContext, env: Any) -> TextSeat:
        return TextSeat(context.name, self.Speaker(self, Terminal(env, self.console, self.stream)), context.trainable)

    @dataclass(frozen=True)
    class Speaker:
        person: PersonOperator
        terminal: Terminal

        async def reply(self, observation: Observation) -> TextReply:
            if observation.system:
                self.terminal.say(HELP, "dim")
            for number, choice in enumerate(observation.choices, start=1):
                self.terminal.say(f"  {number}  {choice}", "cyan")
            action = None if self.person.left else await self.terminal.ask(observation)
            if action is None:
                self.person.left = True
                raise PersonLeftError("the person left")
            return TextReply(Message(Role.ASSISTANT, action))
