"""A world of independent parts, for `sub_agents.py`: locks that are opened one after another."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from sojourn.errors import ActionError
from sojourn.tasks import Generated
from sojourn.types import Message, Observation, Role, Step, Task

COLOURS = ("red", "green", "blue", "white")
MARKS = ("up", "down", "left", "right")
WORDS = "the a of and to in is was he it that with on at by from as his her had not but be for are were they".split()
SYSTEM = "Open the locks. Each dial has a colour. Say where to turn it."


@dataclass(frozen=True, kw_only=True)
class Locks:
    """`locks` of `dials` each, which have colours. The right way to turn a dial depends on its colour and on that of
    the dial before it in the same lock, and is the same in all tasks. Each lock pays the share of its dials that were
    turned rightly, divided by the number of locks, when its last dial is turned; an episode in which all are right is a
    success.

    Locks that are `coded` have a code, which is shown with the first dial alone, and is in all their dials what the
    dial before is else. `words` at random follow each colour, and make the contexts long."""

    locks: int = 2
    dials: int = 4
    coded: bool = False
    words: int = 0

    def tasks(self, split: str) -> Sequence[Task]:
        first = 0 if split == "train" else 10**6
        return Generated(lambda index: Task("locks", {}, first + index, split), 10**5)

    def make(self, task: Task) -> LocksPlay:
        draw = random.Random(task.seed)
        colours = [[draw.randrange(4) for _ in range(self.dials)] for _ in range(self.locks)]
        codes = [draw.randrange(4) for _ in range(self.locks)] if self.coded else []
        return LocksPlay(colours, codes, self.words, draw)


@dataclass
class LocksPlay:
    colours: list[list[int]]
    codes: list[int]  # none, where locks are not coded
    words: int
    draw: random.Random  # of the words
    lock: int = 0
    dial: int = 0
    right: list[int] = field(default_factory=list[int])

    async def start(self) -> Observation:
        self.right = [0] * len(self.colours)
        return self._shown((Message(Role.SYSTEM, SYSTEM),))

    async def step(self, agent: str, action: Message) -> Step:
        if action.text not in MARKS:
            raise ActionError(f"Say one of {', '.join(MARKS)}.")
        own = self.colours[self.lock]
        before = self.codes[self.lock] if self.codes else own[self.dial - 1] if self.dial else 0
        self.right[self.lock] += MARKS.index(action.text) == (own[self.dial] + before) % len(MARKS)
        self.dial += 1
        if self.dial < len(own):
            return Step(self._shown(), {agent: 0.0})
        reward = self.right[self.lock] / len(own) / len(self.colours)
        self.lock, self.dial = self.lock + 1, 0
        if self.lock < len(self.colours):
            return Step(self._shown(), {agent: reward})
        return Step(None, {agent: reward}, done=True, success=sum(self.right) == len(own) * len(self.colours))

    async def close(self) -> None:
        """Does nothing: nothing is open."""

    def _shown(self, system: tuple[Message, ...] = ()) -> Observation:
        text = f"{COLOURS[self.colours[self.lock][self.dial]]}."
        if self.dial == 0:
            text = f"code {COLOURS[self.codes[self.lock]]}, {text}" if self.codes else text
            text = f"Lock {self.lock + 1}: {text}"
        text = " ".join((text, *self.draw.choices(WORDS, k=self.words)))
        return Observation((Message(Role.USER, text),), system, choices=MARKS)
