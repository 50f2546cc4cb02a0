"""A seat whose filler speaks in words: what it says is recorded as it was said, without tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from sojourn.errors import ActionError
from sojourn.types import Ending, Message, Observation, Role, Sample, Stop, Trajectory, Turn, Versions

NO_SAMPLE = Sample(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32), Versions(-1, -1), Stop.END)


class TextReply(NamedTuple):
    """What was said, None where it could not be read (`fault` says why); `tokens` are those its speaker counted."""

    message: Message | None
    tokens: int = 0
    fault: str = ""


class Speaker(Protocol):
    """Says the next action of a seat."""

    async def reply(self, observation: Observation) -> TextReply: ...


@dataclass
class TextSeat:
    """One seat in one episode, as `play` asks it. A refused action is told to it, and costs a turn."""

    name: str
    speaker: Speaker
    trainable: bool = True
    turns: list[Turn] = field(default_factory=list)
    pending_reward: float = 0.0

    ends_when_malformed = False

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        spoken = await self.speaker.reply(observation)
        images = tuple(image for message in observation.messages for image in message.images)
        turn = Turn(
            parent=len(self.turns) - 1,
            context=NO_SAMPLE.tokens,
            sample=NO_SAMPLE,
            message=spoken.message,
            reward=self.pending_reward,
            info={"tokens": float(spoken.tokens)} if spoken.tokens else {},
            images=images,
            state=state,
            observed=(*observation.system, *observation.messages),
            tools=observation.tools if observation.system else (),
        )
        self.turns.append(turn)
        self.pending_reward = 0.0
        if spoken.message is None:
            raise ActionError(spoken.fault)
        return spoken.message

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        """Adds to the last turn; what comes before the first turn is owed to it."""
        if not self.turns:
            self.pending_reward += reward
            return
        last = self.turns[-1]
        self.turns[-1] = replace(last, reward=last.reward + reward, info={**last.info, **info})

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        return replace(observation, system=(), messages=(Message(Role.USER, str(error)),))

    def finish(self, ending: Ending) -> Trajectory:
        return Trajectory(self.name, tuple(self.turns), ending, self.trainable)
