"""Replays an episode through the agent that played it: for agents that show the model more than the world does, rewrite
what it shows, or sample more than once in a turn.

The agent is told what the world says now, and its model says again what was sampled. So the turns that it keeps differ
from the record only where the world does: what the agent itself adds is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sojourn.abilities import asked_for_text, with_base_agents
from sojourn.errors import ActionError, BudgetError
from sojourn.models.asking import Answer, AskedModels, Exchange
from sojourn.protocols import Agent, AgentContext, Seat
from sojourn.replay.compare import DiffersError, NotReplayableError, compare_rewards, compare_shown, compare_state
from sojourn.types import (
    Ending,
    FloatArray,
    Message,
    Observation,
    Prompt,
    Sample,
    SamplingParams,
    Tool,
    Trajectory,
)

ROOM = 1 << 30  # tokens of a context that is never full: where it was full, the record ends
TOKEN = Prompt(np.zeros(1, dtype=np.int64))


class RecordEndsError(BudgetError):
    """The agent asks for a sample after the last that is recorded."""


@dataclass
class RecordedModel:
    """The model of a seat, and its format: it says the recorded samples in their order, and reads each as the message
    that is recorded with it. Prompts have one token, as nothing is sampled from them."""

    trajectory: Trajectory
    at: int = 0
    stops: tuple[int, ...] = ()
    messages: dict[tuple[int, ...], Message | None] = field(init=False)

    def __post_init__(self) -> None:
        self.messages = {tuple(turn.sample.tokens.tolist()): turn.message for turn in self.trajectory.turns}

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        if self.at == len(self.trajectory.turns):
            raise RecordEndsError(f"the record of {self.trajectory.agent} has {self.at} samples")
        self.at += 1
        return self.trajectory.turns[self.at - 1].sample

    async def score(self, prompt: Prompt) -> FloatArray:
        return np.zeros(len(prompt.tokens) - 1, dtype=np.float32)

    async def close(self) -> None:
        """Does nothing: nothing is open."""

    def open(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        return TOKEN

    def extend(self, last: Sample, messages: Sequence[Message]) -> Prompt | None:
        """Returns None where the record has a new context, as the model's format asked for one there."""
        turns = self.trajectory.turns
        return None if self.at < len(turns) and turns[self.at].parent < 0 else TOKEN

    def parse(self, tokens: Sequence[int]) -> Message:
        if tuple(tokens) not in self.messages:
            raise NotReplayableError("its agent reads tokens that are no whole sample, which only its model can read")
        message = self.messages[tuple(tokens)]
        if message is None:
            raise ActionError("it could not be read")
        return message

    def encode_reply(self, message: Message) -> Sequence[int]:
        return (0,)


@dataclass
class RecordedAnswers:
    """A model that a seat asked in an episode: it gives the recorded answers `asked` in their order."""

    seat: str
    asked: Sequence[Exchange]
    given: int = 0

    async def ask(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, asker: str = ""
    ) -> Answer:
        self.given += 1
        found = [one for one in self.asked if one.purpose == f"{self.seat}, question {self.given}"]
        if not found:
            raise NotReplayableError(f"the answer to question {self.given} of {self.seat} is not recorded with it")
        return Answer(found[0].answer, 0, 0)


@dataclass
class AgentSeat:
    """A seat of the agent that played. What it kept is compared with the record when the play is over."""

    trajectory: Trajectory
    seat: Seat
    played: Trajectory | None = None

    @classmethod
    def of(
        cls, agent: Agent, trajectory: Trajectory, params: SamplingParams, asked: Sequence[Exchange] = ()
    ) -> AgentSeat:
        """Returns the seat that took a trajectory, in an episode about which models were `asked`."""
        model = RecordedModel(trajectory)
        names = {name for one in with_base_agents(agent) for name in asked_for_text(one)}
        of_models = {name: [one for one in asked if one.model == name] for name in names}
        answers = AskedModels({name: RecordedAnswers(trajectory.agent, of) for name, of in of_models.items()})
        context = AgentContext(
            name=trajectory.agent,
            renderer=model,
            sampler=model,
            params=params,
            max_context=ROOM,
            trainable=trajectory.trainable,
            models=answers.of_episode(""),
        )
        return cls(trajectory, agent.seat(context))

    @property
    def ends_when_malformed(self) -> bool:
        return self.seat.ends_when_malformed

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        return await self.seat.act(observation, state)

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        self.seat.add_reward(reward, info)

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        return self.seat.refuse(error, observation)

    def finish(self, ending: Ending) -> Trajectory:
        self.played = self.seat.finish(ending)
        return self.played

    def compare_end(self) -> None:
        """Compares all turns. What follows an action that could not be read says why, in words of the model's format,
        and nothing that is new of the world: it is not compared."""
        assert self.played is not None, "the play is over"
        was, now = self.trajectory.turns, self.played.turns
        unread = False
        for number, (old, new) in enumerate(zip(was, now, strict=False), 1):
            where = f"turn {number} of {self.trajectory.agent}"
            if not unread:
                compare_shown(where, old.observed, new.observed)
            compare_state(where, old.state, new.state)
            compare_rewards(where, old, new)
            unread = old.message is None
        if len(now) < len(was):
            raise DiffersError(f"{self.trajectory.agent} acts in {len(now)} turns, but it did in {len(was)}")
