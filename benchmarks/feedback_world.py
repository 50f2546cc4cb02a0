"""People who want a colour and a shape for what they name, and say so when they get others: `feedback.py` asks them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product

from sojourn.streams.hindsight_hint import LABEL
from sojourn.tasks import Generated
from sojourn.types import Message, Observation, Role, Step, Task

THINGS = ("door", "lamp", "cup", "flag", "hat", "boat", "kite", "sign", "coat", "ring", "mask", "drum")
COLOURS = ("red", "blue", "green", "black", "white", "brown")
SHAPES = ("round", "square", "long", "flat", "thin", "wide")
ANSWERS = tuple(f"{colour} {shape}" for colour, shape in product(COLOURS, SHAPES))
BYE = "Bye."


def correction(wanted: str) -> str:
    return f"No, I wanted: {wanted}. {BYE}"


@dataclass(frozen=True, kw_only=True)
class Tastes:
    """Somebody names a thing; the right answer is the colour and the shape that all people of this `taste` want for it.
    They thank for it, or say what they wanted; the world pays nothing.

    `hinted` is the warm-up, which tells nothing about tastes: the expert says any answer, but where a hint is there,
    which names another answer each time, it says that one.
    """

    taste: int = 0
    hinted: bool = False

    def tasks(self, split: str) -> Generated:
        first = 0 if split == "train" else 1_000_000
        return Generated(lambda index: Task("tastes", {}, first + index, split), 100_000)

    def make(self, task: Task) -> Play:
        rng, people = random.Random(task.seed), random.Random(f"taste {self.taste}")
        wanted = {thing: people.choice(ANSWERS) for thing in THINGS}
        thing = rng.choice(THINGS)
        if not self.hinted:
            return Play(f"{thing}?", wanted[thing])
        said, hint = rng.choice(ANSWERS), rng.random() < 0.5
        return Play(f"{thing}?{LABEL}{correction(said)}" if hint else f"{thing}?", said, ends=True)


@dataclass
class Play:
    asked: str
    wanted: str
    ends: bool = False  # without a word after the answer
    right: bool | None = None

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, self.asked),), choices=ANSWERS)

    async def step(self, agent: str, action: Message) -> Step:
        if self.right is not None:
            return Step(None, done=True, success=self.right)
        self.right = action.text.strip() == self.wanted
        if self.ends:
            return Step(None, {agent: float(self.right)}, done=True, success=self.right)
        said = f"Thanks. {BYE}" if self.right else correction(self.wanted)
        return Step(Observation((Message(Role.USER, said),), choices=(BYE,)))

    def expert(self) -> str:
        return self.wanted if self.right is None else BYE

    async def close(self) -> None: ...
