"""A world of two seats that measures how probable each action is in each of its two rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sojourn.abilities import MeasuredPolicy
from sojourn.envs.about import About
from sojourn.types import Message, Observation, Role, Step, Task

SEATS = ("left", "right")
COLOURS, WAYS = ("red", "green", "light blue"), ("up", "upwards", "down")


def observed(seat: str, said: str = "") -> Observation:
    """Returns what a seat sees in its first round, or in the second, after what it said in the first."""
    if not said:
        system = (Message(Role.SYSTEM, f"You are {seat}."),)
        return Observation((Message(Role.USER, "Which colour?"),), system=system, choices=COLOURS, agent=seat)
    return Observation((Message(Role.USER, f"After {said}, which way?"),), choices=WAYS, agent=seat)


@dataclass(frozen=True, kw_only=True)
class Picks:
    """Each seat picks a colour, and then a way; red pays. `measures` says what `measure` does: "probabilities" gives
    those of all actions; other words are for what goes wrong."""

    about = About(source="made for tests", licence="Apache-2.0")
    measures: str = "probabilities"
    named: str = "picks"
    level: int = 0
    seats = SEATS

    def tasks(self, split: str) -> list[Task]:
        first = 0 if split == "train" else 100
        return [Task(self.named, {"level": self.level}, first + seed, split) for seed in range(8)]

    def make(self, task: Task) -> Play:
        return Play()

    async def measure(self, policy: MeasuredPolicy) -> Any:
        match self.measures:
            case "nothing":
                return {}
            case "no number":
                return {"wrong": float("nan")}
            case "no table":
                return 3.0
            case "unlisted":
                await policy("left", [observed("left"), "yellow", observed("left", "yellow")])
        async with asyncio.TaskGroup() as group:
            asked = {seat: group.create_task(_probabilities(policy, seat)) for seat in SEATS}
        return {name: value for task in asked.values() for name, value in task.result().items()}


async def _probabilities(policy: MeasuredPolicy, seat: str) -> dict[str, float]:
    first: Sequence[Observation | str] = [observed(seat)]
    found = {f"{seat}/{colour}": p for colour, p in zip(COLOURS, await policy(seat, first), strict=True)}
    for colour in COLOURS:
        ways = await policy(seat, [*first, colour, observed(seat, colour)])
        found |= {f"{seat}/{colour}/{way}": p for way, p in zip(WAYS, ways, strict=True)}
    return found


@dataclass
class Play:
    said: dict[str, str] = field(default_factory=dict[str, str])
    turns: int = 0

    async def start(self) -> Observation:
        return observed(SEATS[0])

    async def step(self, agent: str, action: Message) -> Step:
        self.said.setdefault(agent, action.text)
        self.turns += 1
        if self.turns == 4:
            return Step(None, {seat: float(self.said[seat] == "red") for seat in SEATS}, done=True)
        seat = SEATS[self.turns % 2]
        return Step(observed(seat, self.said.get(seat, "")), {agent: 0.0})

    def expert(self) -> str:
        return "red" if self.turns < 2 else "up"

    async def close(self) -> None: ...
