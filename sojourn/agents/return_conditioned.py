"""An agent that tells the model which return it is to get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from sojourn.abilities import ForkableSeat
from sojourn.agents.plain import Plain
from sojourn.config.fields import Kind, Range
from sojourn.errors import ActionError, ConfigError
from sojourn.protocols import Agent, AgentContext, Seat
from sojourn.types import Ending, Message, Observation, Role, Trajectory


@dataclass(frozen=True, kw_only=True)
class ReturnConditioned:
    """Has the agent `base` act, and shows the model the return that it is to get, `target`, as the text "Return: 1."
    (after Decision Transformer: Chen et al. 2021, arXiv:2106.01345, whose introduction and authors' evaluation code
    were read).

    A model that was trained on episodes with the returns that they really got, by the source `with_returns`, acts as
    those did that got what it is asked for. The text ends the system message, where every context shows it. With
    `to_go` it ends what the world shows in each turn instead, and is the return that is still to come: `target` less
    the rewards so far, as in the paper, whose numbers are embeddings before each state. `decimals` says to how many
    places it is rounded; few of them join returns that are nearly equal, as the reward quantiles of Quark do (Lu et al.
    2022, arXiv:2205.13636, whose abstract and code were read).
    """

    target: float = 1.0
    to_go: bool = False
    decimals: Annotated[int, Range(0, 6)] = 1
    base: Annotated[Agent, Kind("agent")] = field(default_factory=Plain)

    def __post_init__(self) -> None:
        if isinstance(self.base, ReturnConditioned):
            raise ValueError("base is return_conditioned, too: name the agent that is to act, such as plain")

    def seat(self, context: AgentContext) -> ReturnConditionedSeat:
        return ReturnConditionedSeat(self, self.base.seat(context), self.target)

    def text(self, value: float) -> str:
        """Returns what the model is shown of a return; -0 is 0."""
        return f"Return: {round(value, self.decimals) + 0.0:g}."


@dataclass
class ReturnConditionedSeat:
    """A participant of one episode, which is shown the return that is still to come."""

    config: ReturnConditioned
    base: Seat
    to_come: float
    begun: bool = False
    seen: Observation | None = None  # what the world showed last, with the text
    refusal: Observation | None = None

    @property
    def ends_when_malformed(self) -> bool:
        return self.base.ends_when_malformed

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        if observation is not self.refusal:  # after a refusal the world shows nothing new
            self.seen = observation = self._told(observation)
        self.begun = True
        return await self.base.act(observation, state)

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        self.to_come -= reward
        self.base.add_reward(reward, info)

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        self.refusal = self.base.refuse(error, self.seen or observation)
        return self.refusal

    def fork(self) -> ReturnConditionedSeat:
        if not isinstance(self.base, ForkableSeat):
            raise ConfigError(
                f"the seats of {type(self.config.base).__name__} have no fork(), so those of return_conditioned have "
                "none either: choose another base, such as plain"
            )
        return replace(self, base=self.base.fork())

    def finish(self, ending: Ending) -> Trajectory:
        return self.base.finish(ending)

    def _told(self, observation: Observation) -> Observation:
        if self.config.to_go:
            text = self.config.text(self.to_come)
            return replace(observation, messages=_ended(observation.messages, Role.USER, text))
        if self.begun and not observation.system:
            return observation  # the system messages stay as they are
        return replace(
            observation, system=_ended(observation.system, Role.SYSTEM, self.config.text(self.config.target))
        )


def _ended(messages: tuple[Message, ...], role: Role, text: str) -> tuple[Message, ...]:
    """Returns the messages with a text at the end of the last one, if that is of a role, else as one more."""
    if not messages or messages[-1].role is not role:
        return (*messages, Message(role, text))
    last = messages[-1]
    return (*messages[:-1], replace(last, text=f"{last.text} {text}" if last.text else text))
