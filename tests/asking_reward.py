"""A reward of a user's own that asks a model for text: any answer will do, so that models without training can give
it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sojourn import Group, Message, Score
from sojourn.models.asking import AskedModels
from sojourn.types import Role


@dataclass(frozen=True)
class Marks:
    """A number from 0 to 1 that follows from what the model says about the agent's last words."""

    model: str = "policy"
    max_tokens: int = 6
    asked: AskedModels = field(default_factory=lambda: AskedModels({}), init=False)

    @property
    def asks(self) -> frozenset[str]:
        return frozenset({self.model})

    def bind_models(self, models: AskedModels) -> Marks:
        bound = Marks(self.model, self.max_tokens)
        object.__setattr__(bound, "asked", models)
        return bound

    def example_answer(self, question: Sequence[Message]) -> str:
        return "well done"

    async def __call__(self, group: Group) -> list[Score]:
        scores = []
        for owner, trajectory in zip(group.owners, group.trajectories, strict=True):
            message = trajectory.turns[-1].message
            answer = await self.asked.ask(
                self.model,
                [Message(Role.USER, message.text if message is not None else "")],
                max_tokens=self.max_tokens,
                temperature=1.0,
                seed=owner,
                about=[group.episodes[owner].id],
                purpose="a mark",
            )
            turns = np.zeros(len(trajectory.turns), dtype=np.float32)
            turns[-1] = hashlib.sha256(answer.text.encode()).digest()[0] / 255
            scores.append(Score(turns))
        return scores
