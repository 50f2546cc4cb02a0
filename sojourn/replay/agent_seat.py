"""Replays an episode through the agent that played it: for agents that show the model more than the world does, rewrite
what it shows, or sample more than once in a turn.

The agent is told what the world says now, and its model says again what was sampled. So the turns that it keeps differ
from the record only where the world does: what the agent itself adds is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sojourn.abilities import MOVE, all_trajectories, asked_for_text, with_base_agents
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
    Turn,
)

ROOM = 1 << 30  # tokens of a context that is never full: where it was full, the record ends
TOKEN = Prompt(np.zeros(1, dtype=np.int64))


class RecordEndsError(BudgetError):
    """The agent asks for a sample after the last that is recorded."""


@dataclass
class RecordedModel:
    """The model of a seat, and of the agents that it `called`, and its format: it says the recorded samples in their
    order, and reads each as the message that is recorded with it. Prompts have one token, as nothing is sampled from
    them."""

    trajectory: Trajectory
    called: Sequence[Trajectory] = ()
    at: int = 0
    stops: tuple[int, ...] = ()
    turns: list[Turn] = field(init=False)
    messages: dict[tuple[int, ...], Message | None] = field(init=False)

    def __post_init__(self) -> None:
        self.turns = [turn for one in (self.trajectory, *self.called) for turn in one.turns]
        if self.called:
            self.turns.sort(key=lambda turn: turn.info.get(MOVE, 0.0))
        self.messages = {tuple(turn.sample.tokens.tolist()): turn.message for turn in self.turns}

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        if self.at == len(self.turns):
            raise RecordEndsError(f"the record of {self.trajectory.agent} has {self.at} samples")
        self.at += 1
        return self.turns[self.at - 1].sample

    async def score(self, prompt: Prompt) -> FloatArray:
        return np.zeros(len(prompt.tokens) - 1, dtype=np.float32)

    async def close(self) -> None:
        """Does nothing: nothing is open."""

    def open(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        return TOKEN

    def extend(self, last: Sample, messages: Sequence[Message]) -> Prompt | None:
        """Returns None where the record has a new context, as the model's format asked for one there."""
        return None if self.at < len(self.turns) and self.turns[self.at].parent < 0 else TOKEN

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
        return Answer(found[0].answer, 0, 0, unanswered=found[0].unanswered)


@dataclass
class AgentSeat:
    """A seat of the agent that played. What it kept is compared with the record when the play is over, as is that of
    the agents that it called (`calls`)."""

    trajectory: Trajectory
    seat: Seat
    calls: Sequence[Trajectory] = ()
    played: tuple[Trajectory, ...] = ()

    @classmethod
    def of(
        cls,
        agent: Agent,
        trajectory: Trajectory,
        params: SamplingParams,
        called: Sequence[Trajectory] = (),
        asked: Sequence[Exchange] = (),
    ) -> AgentSeat:
        """Returns the seat that took a trajectory, by whom others were `called`, in an episode about which models were
        `asked`."""
        model = RecordedModel(trajectory, called)
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
        return cls(trajectory, agent.seat(context), called)

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
        self.played = all_trajectories([self.seat], ending)
        return self.played[0]

    def called(self, ending: Ending) -> tuple[Trajectory, ...]:
        return self.played[1:]

    def compare_end(self) -> None:
        """Compares all turns."""
        assert self.played, "the play is over"
        if len(self.played) < 1 + len(self.calls):
            raise DiffersError(
                f"{self.trajectory.agent} called {len(self.calls)} agents, but {len(self.played) - 1} act"
            )
        for was, now in zip((self.trajectory, *self.calls), self.played, strict=False):
            _compare(was, now)


def _compare(recorded: Trajectory, played: Trajectory) -> None:
    """Compares the turns of two trajectories. What follows an action that could not be read says why, in words of the
    model's format, and nothing that is new of the world: it is not compared."""
    was, now = recorded.turns, played.turns
    unread = False
    for number, (old, new) in enumerate(zip(was, now, strict=False), 1):
        where = f"turn {number} of {recorded.agent}"
        if not unread:
            compare_shown(where, old.observed, new.observed)
        compare_state(where, old.state, new.state)
        compare_rewards(where, old, new)
        unread = old.message is None
    if len(now) < len(was):
        raise DiffersError(f"{recorded.agent} acts in {len(now)} turns, but it did in {len(was)}")
