"""An agent that asks a person in its first turn and then acts, and a person who answers what is asked in a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sojourn.agents.plain import Plain, PlainSeat
from sojourn.errors import RecordError
from sojourn.models.questions import Question, Questions
from sojourn.protocols import AgentContext
from sojourn.types import Message, Observation

QUESTION = "ask: Where is <b>the key</b>?"

RECIPE = """
name = "asks-people"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "toy", rooms = 2, choices = true }
sampling = { max_tokens = 8 }
evaluation = { tasks = 2 }
record = { checkpoint_every = 1 }
rollout = { limits = { turns = 6 } }
[agent]
name = "ask_person"
base = { name = "asking_base:AsksFirst" }
cost = 0.1
wait_s = 600.0
unanswered = "Nobody is there."
[[stages]]
name = "rl"
steps = 2
groups = { name = "slots", width = 2, size = 2 }
estimator = { name = "reinforce", baseline = "none" }
losses = [{ name = "ppo" }]
"""


@dataclass(frozen=True, kw_only=True)
class AsksFirst:
    """Samples among the choices; whatever it samples in its first turn is taken for a question."""

    def seat(self, context: AgentContext) -> AsksFirstSeat:
        return AsksFirstSeat(Plain(choices=True), context)


class AsksFirstSeat(PlainSeat):
    async def act(self, observation: Observation, state: str | None = None) -> Message:
        message = await super().act(observation, state)
        return replace(message, text=QUESTION) if len(self.turns) == 1 else message


def by_length(one: Question) -> str:
    """Answers by what the agent was shown, so that different episodes get different answers."""
    return f"Go {('north', 'south', 'east')[len(one.conversation[-2].text) % 3]}."


@contextmanager
def answering(folder: Path, answer: Callable[[Question], str] = by_length) -> Iterator[list[Question]]:
    """Has somebody answer all that is asked in a folder; yields what they answered."""
    over, answered = threading.Event(), list[Question]()

    def person() -> None:
        while not over.wait(0.02):
            for one in Questions(folder).open():
                try:
                    Questions(folder).answer(one.key, answer(one))
                except RecordError:  # it is not waited for any more
                    continue
                answered.append(one)

    thread = threading.Thread(target=person, daemon=True)
    thread.start()
    try:
        yield answered
    finally:
        over.set()
        thread.join()
