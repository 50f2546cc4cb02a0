"""An agent that chooses the evidence by which its work is judged."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Annotated

from sojourn.agents.plain import Plain
from sojourn.agents.told import ToldSeat, require_base
from sojourn.config.fields import Kind, Range
from sojourn.errors import ActionError, NoActionError
from sojourn.protocols import Agent, AgentContext
from sojourn.types import Message, Observation

TOLD = (
    "What you are shown is numbered by turns. Your work is judged by evidence alone: as soon as what you were shown "
    "proves that the task is done, or will be with this action, end your message with a line that gives the numbers of "
    "the {most} turns, or fewer, that prove it best, such as: evidence: 2, 5"
)
STATED = re.compile(r"\bevidences?\W{0,20}(?:turns?\W{0,3})?\d[\d\s,]*\.?$", re.IGNORECASE)
LONGEST = 1_000  # characters at the end of a message in which the line is looked for


@dataclass(frozen=True, kw_only=True)
class SelfVerifying:
    """Has the agent `base` act, which is to prove what it did (SmartSnap: Cai et al. 2025, arXiv:2512.22322): each
    observation begins with the number of its turn, and the end of the system message asks for a line such as "evidence:
    2, 5" that names at most `evidence` of them. The reward `judge` with `proof` reads that line of the last message.

    The world gets the action without the line. What is trained is what the policy sampled, with the line. In the paper
    the evidence is given by a tool that ends the play, and its agent is told to look once more at what it did for the
    sake of better evidence; here the world ends it, and each message may have the line.
    """

    evidence: Annotated[int, Range(1)] = 3
    base: Annotated[Agent, Kind("agent")] = field(default_factory=Plain)

    def __post_init__(self) -> None:
        require_base(self.base)
        if isinstance(self.base, Plain) and self.base.choices:
            raise ValueError("base with choices, of which none has a line with evidence: set base.choices to false")

    def seat(self, context: AgentContext) -> SelfVerifyingSeat:
        text = TOLD.format(most=self.evidence)
        return SelfVerifyingSeat(agent="self_verifying", acting=self.base, base=self.base.seat(context), text=text)


def without_evidence(text: str) -> str:
    """Returns a message without the line of evidence that it ends with; as it is, where there is none."""
    stripped = text.rstrip()
    stated = STATED.search(stripped, max(0, len(stripped) - LONGEST))
    return text if stated is None else stripped[: stated.start()].rstrip()


@dataclass(kw_only=True)
class SelfVerifyingSeat(ToldSeat):
    """A participant of one episode, whose observations are numbered from 1."""

    taken: int = 0  # turns

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        try:
            action = await super().act(observation, state)
        except (ActionError, NoActionError):
            self.taken += 1
            raise
        self.taken += 1
        return replace(action, text=without_evidence(action.text))

    def told(self, observation: Observation) -> Observation:
        return self._numbered(super().told(observation))

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        self.refusal = self._numbered(super().refuse(error, observation))
        return self.refusal

    def _numbered(self, observation: Observation) -> Observation:
        """Returns an observation that begins with the number of the turn which it is for. An agent around this one may
        show what was numbered once more, with words of its own."""
        first, *others = observation.messages or (None,)
        if first is None:
            return observation
        return replace(observation, messages=(replace(first, text=f"[turn {self.taken + 1}] {first.text}"), *others))
