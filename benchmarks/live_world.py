"""The world of `live.py`: requests that can be answered in several styles, of which a person likes one best."""

from __future__ import annotations

import random
from dataclasses import dataclass

from sojourn.tasks import Generated
from sojourn.types import Message, Observation, Role, Step, Task

STYLES = ("brief", "steps", "table")
REQUESTS = ("route", "recipe", "news", "code")
ASKED = 3  # requests of a session, each once


def reaction(reply: str, wanted: str) -> str:
    """Returns what a person says of a reply before the next request."""
    return "Thanks. " if reply.strip() == wanted else f"No, I wanted: {wanted}. "


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Asks three things, one after the other. A play succeeds if each reply is the name of any style: that is all that
    a held-out panel can know, as what people like is hidden, and drifts. Its own user likes each style as often, and
    its expert answers in any."""

    def tasks(self, split: str) -> Generated:
        first = 0 if split == "train" else 1_000_000
        return Generated(lambda index: Task("requests", {}, first + index, split), 2_000)

    def make(self, task: Task) -> Play:
        return Play(random.Random(task.seed))


class Play:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.asked = rng.sample(REQUESTS, ASKED)
        self.valid: list[bool] = []

    async def start(self) -> Observation:
        return self._observation("")

    async def step(self, agent: str, action: Message) -> Step:
        self.valid.append(action.text.strip() in STYLES)
        if len(self.valid) == ASKED:
            return Step(None, done=True, success=all(self.valid))
        return Step(self._observation(reaction(action.text, self.rng.choice(STYLES))))

    def expert(self) -> str:
        return self.rng.choice(STYLES)

    async def close(self) -> None: ...

    def _observation(self, said: str) -> Observation:
        return Observation((Message(Role.USER, f"{said}{self.asked[len(self.valid)]}?"),))
