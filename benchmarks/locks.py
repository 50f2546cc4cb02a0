"""Worlds of independent parts, for `sub_agents.py`: locks that are opened one after another."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from sojourn.errors import ActionError
from sojourn.tasks import Generated
from sojourn.types import Message, Observation, Role, Step, Task

COLOURS = ("red", "green", "blue", "white")
MARKS = ("up", "down", "left", "right")
SYSTEM = "Open the locks. Each dial has a colour. Say where to turn it."


@dataclass(frozen=True, kw_only=True)
class Locks:
    """`locks` of `dials` each, which have colours. The right way to turn a dial depends on its colour and on that of
    the dial before it in the same lock, and is the same in all tasks. Each lock pays the share of its dials that were
    turned rightly, divided by the number of locks, when its last dial is turned; an episode in which all are right is a
    success."""

    locks: int = 2
    dials: int = 4

    def tasks(self, split: str) -> Sequence[Task]:
        first = 0 if split == "train" else 10**6
        return Generated(lambda index: Task("locks", {}, first + index, split), 10**5)

    def make(self, task: Task) -> LocksPlay:
        draw = random.Random(task.seed)
        return LocksPlay([[draw.randrange(4) for _ in range(self.dials)] for _ in range(self.locks)])


BLACK = len(COLOURS)  # the colour of dials that have the colour of their lock
WORDS = ("the", "of", "and", "to", "in", "is", "was", "he", "it", "that", "with", "on", "at", "by", "from", "as", "his")


@dataclass(frozen=True, kw_only=True)
class LongLocks:
    """`locks` of `dials` each, whose descriptions of `words` at random make a long context. The right way to turn a
    dial depends on its colour alone, but half of the dials are black: those have the colour of their lock, which is
    told with its first dial, and not again. Rewards and success are those of `Locks`."""

    locks: int = 4
    dials: int = 6
    words: int = 20

    def tasks(self, split: str) -> Sequence[Task]:
        return Locks().tasks(split)

    def make(self, task: Task) -> LocksPlay:
        draw = random.Random(task.seed)
        own = [draw.randrange(4) for _ in range(self.locks)]
        colours = [[draw.choice((draw.randrange(4), BLACK)) for _ in range(self.dials)] for _ in range(self.locks)]
        texts = [[" ".join(draw.choices(WORDS, k=self.words)) for _ in range(self.dials)] for _ in range(self.locks)]
        return LocksPlay(colours, own, texts)


@dataclass
class LocksPlay:
    colours: list[list[int]]
    own: list[int] = field(default_factory=list[int])  # colours of long locks
    texts: list[list[str]] = field(default_factory=list[list[str]])
    lock: int = 0
    dial: int = 0
    right: list[int] = field(default_factory=list[int])

    async def start(self) -> Observation:
        self.right = [0] * len(self.colours)
        return self._shown((Message(Role.SYSTEM, SYSTEM),))

    async def step(self, agent: str, action: Message) -> Step:
        if action.text not in MARKS:
            raise ActionError(f"Say one of {', '.join(MARKS)}.")
        dials = self.colours[self.lock]
        self.right[self.lock] += MARKS.index(action.text) == self._wanted(dials)
        self.dial += 1
        if self.dial < len(dials):
            return Step(self._shown(), {agent: 0.0}, success=False)
        reward = self.right[self.lock] / len(dials) / len(self.colours)
        self.lock, self.dial = self.lock + 1, 0
        if self.lock < len(self.colours):
            return Step(self._shown(), {agent: reward}, success=False)
        return Step(None, {agent: reward}, done=True, success=sum(self.right) == len(dials) * len(self.colours))

    async def close(self) -> None:
        """Does nothing: nothing is open."""

    def _wanted(self, dials: Sequence[int]) -> int:
        """Returns the number of the mark to which the present dial is to be turned."""
        if self.own:
            return self.own[self.lock] if dials[self.dial] == BLACK else dials[self.dial]
        return (dials[self.dial] + (dials[self.dial - 1] if self.dial else 0)) % len(MARKS)

    def _shown(self, system: tuple[Message, ...] = ()) -> Observation:
        text = f"{(*COLOURS, 'black')[self.colours[self.lock][self.dial]]}."
        if self.texts:
            text = f"{text} {self.texts[self.lock][self.dial]}"
        if self.dial == 0:
            text = f"Lock {self.lock + 1}{f', {COLOURS[self.own[self.lock]]}' if self.own else ''}: {text}"
        return Observation((Message(Role.USER, text),), system, choices=MARKS)
