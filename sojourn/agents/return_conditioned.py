"""An agent that tells the model which return it is to get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from sojourn.agents.plain import Plain
from sojourn.agents.told import ToldSeat, ended, require_base
from sojourn.config.fields import Kind, Range
from sojourn.protocols import Agent, AgentContext
from sojourn.types import Observation, Role


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
        require_base(self.base)
        if isinstance(self.base, ReturnConditioned):
            raise ValueError("base is return_conditioned, too: name the agent that is to act, such as plain")

    def seat(self, context: AgentContext) -> ReturnConditionedSeat:
        return ReturnConditionedSeat(
            agent="return_conditioned",
            acting=self.base,
            base=self.base.seat(context),
            text=self.text(self.target),
            config=self,
            to_come=self.target,
        )

    def text(self, value: float) -> str:
        """Returns what the model is shown of a return; -0 is 0."""
        return f"Return: {round(value, self.decimals) + 0.0:g}."


@dataclass(kw_only=True)
class ReturnConditionedSeat(ToldSeat):
    """A participant of one episode, which is shown the return that it is to get, or that is still to come."""

    config: ReturnConditioned
    to_come: float

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        self.to_come -= reward
        super().add_reward(reward, info)

    def told(self, observation: Observation) -> Observation:
        if not self.config.to_go:
            return super().told(observation)
        text = self.config.text(self.to_come)
        return replace(observation, messages=ended(observation.messages, Role.USER, text))
