"""A seat that shows its model a text at the end of the system message, whatever agent acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sojourn.abilities import ActsByProgram, ForkableSeat, HasSubAgents, LooksAhead
from sojourn.errors import ActionError, ConfigError
from sojourn.protocols import Agent, AgentContext, Seat
from sojourn.types import Ending, Message, Observation, Role, Trajectory


@dataclass(kw_only=True)
class ToldSeat:
    """A participant of one episode, whose system message ends with `text`. The seat `base`, of the agent `acting`, acts
    for it; `agent` is the name of the agent that tells."""

    agent: str
    acting: Agent
    base: Seat
    text: str
    begun: bool = False
    seen: Observation | None = None  # what the world showed last, with the text
    refusal: Observation | None = None

    @property
    def ends_when_malformed(self) -> bool:
        return self.base.ends_when_malformed

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        if observation is not self.refusal:  # after a refusal the world shows nothing new
            self.seen = observation = self.told(observation)
        self.begun = True
        return await self.base.act(observation, state)

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        self.base.add_reward(reward, info)

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        self.refusal = self.base.refuse(error, self.seen or observation)
        return self.refusal

    def fork(self, context: AgentContext | None = None) -> ToldSeat:
        if not isinstance(self.base, ForkableSeat):
            raise ConfigError(
                f"the seats of {type(self.acting).__name__} have no fork(), so those of {self.agent} have none either: "
                "choose another base, such as plain"
            )
        return replace(self, base=self.base.fork(context))

    def finish(self, ending: Ending) -> Trajectory:
        return self.base.finish(ending)

    def told(self, observation: Observation) -> Observation:
        """Returns what the world shows with the text."""
        if self.begun and not observation.system:
            return observation  # the system messages stay as they are
        return replace(observation, system=ended(observation.system, Role.SYSTEM, self.text))


def ended(messages: tuple[Message, ...], role: Role, text: str) -> tuple[Message, ...]:
    """Returns the messages with a text at the end of the last one, if that is of a role, else as one more."""
    if not messages or messages[-1].role is not role:
        return (*messages, Message(role, text))
    last = messages[-1]
    return (*messages[:-1], replace(last, text=f"{last.text} {text}" if last.text else text))


def require_base(base: Agent) -> None:
    """Raises `ValueError` for an agent that acts for no other one: one that searches, as only the one that the run has
    is given copies of its play, and one that calls others, whose trajectories would be lost."""
    if isinstance(base, ActsByProgram):
        raise ValueError(
            f"base = {type(base).__name__} is a program, which reads no more than its task: name it as the run's own "
            "agent"
        )
    if isinstance(base, LooksAhead):
        raise ValueError(
            f"base = {type(base).__name__} searches, which only the run's own agent can: name that one first, with "
            "this agent as its base"
        )
    if isinstance(base, HasSubAgents):
        raise ValueError(
            f"base = {type(base).__name__} calls other agents, which only the run's own agent can: name that one "
            "first, with this agent as its base or that of its sub-agents"
        )
