"""A seat for players that act in text (people, experts, endpoints): its turns are recorded without tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from sojourn.agents.refusal import reasons
from sojourn.errors import ActionError, BudgetError
from sojourn.models.asking import TooLongError
from sojourn.types import Ending, Message, Observation, Sample, SamplingParams, Stop, Tool, Trajectory, Turn, Versions

POLICY = SamplingParams.model
NO_SAMPLE = Sample(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32), Versions(-1, -1), Stop.END)


class TextReply(NamedTuple):
    """A message, or None with the reason in `fault` if it could not be parsed; `tokens` is the speaker's own count."""

    message: Message | None
    tokens: int = 0
    fault: str = ""


class Speaker(Protocol):
    """Returns the next action of a seat as text."""

    async def reply(self, observation: Observation) -> TextReply: ...


@dataclass
class TextSeat:
    """The seat of a text player in one episode. A refused action costs a turn, and the player observes the reason.

    A play that has become too long for the player ends as one does where the context of a model that is here is full:
    it did not fail, as those that it is played with could bring that about.
    """

    name: str
    speaker: Speaker
    trainable: bool = True
    model: str = POLICY  # that took the turns, as the trajectory names it
    tools: tuple[Tool, ...] = ()  # as they were declared last
    turns: list[Turn] = field(default_factory=list)
    pending_reward: float = 0.0
    pending_info: Mapping[str, float] = field(default_factory=dict)

    ends_when_malformed = False

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        try:
            reply = await self.speaker.reply(observation)
        except TooLongError as error:
            raise BudgetError(f"the play is too long for whoever takes the seat {self.name}: {error}") from error
        declared, self.tools = self.tools, observation.tools or self.tools
        images = tuple(image for message in observation.messages for image in message.images)
        turn = Turn(
            parent=len(self.turns) - 1,
            context=NO_SAMPLE.tokens,
            sample=replace(NO_SAMPLE),  # one of its own: plays that fork share the turns with the same sample
            message=reply.message,
            reward=self.pending_reward,
            info={**self.pending_info, **({"tokens": float(reply.tokens)} if reply.tokens else {})},
            images=images,
            state=state,
            observed=(*observation.system, *observation.messages),
            tools=self.tools if observation.system or self.tools != declared else (),
        )
        self.turns.append(turn)
        self.pending_reward, self.pending_info = 0.0, {}
        if reply.message is None:
            raise ActionError(reply.fault)
        return reply.message

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        """Adds to the reward and info of the last turn; what comes before the first turn is added to that turn."""
        if not self.turns:
            self.pending_reward, self.pending_info = self.pending_reward + reward, {**self.pending_info, **info}
            return
        last = self.turns[-1]
        self.turns[-1] = replace(last, reward=last.reward + reward, info={**last.info, **info})

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        return replace(observation, system=(), messages=reasons(error, self.turns[-1]))

    def finish(self, ending: Ending) -> Trajectory:
        pending = self.pending_reward, self.pending_info  # of a seat that never acted, else nothing
        return Trajectory(self.name, tuple(self.turns), ending, self.trainable, *pending, self.model)
