"""A world of keys and doors, written once for both sides of `vs_trl.py`, Sojourn's way into it, one record of steps.

The layouts and the sentences are those of Sojourn's `toy`; the dynamics here are plain and synchronous, so that any
trainer can play them.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sojourn.envs import toy
from sojourn.tasks import Generated
from sojourn.types import Message, Observation, Role, Step, Task

# What agents are often told besides the system prompt of the toy: 541 tokens of SmolLM2's.
GUIDE = """
You explore a house of rooms that are joined by ways and doors. Each of your turns is one action, and after it you are
told what changed. There is nobody else in the house, and nothing in it moves by itself.

How to move. Each room has a name and ways that lead out of it, by the points of the compass. Say "go" and one of the
directions that the room lists, such as "go north" or "go west". You then stand in the next room, and read what it
holds. A way leads back as well: whoever went north comes back by going south. Rooms that you have seen keep their
names, so you can tell when you are in one again. A direction that the room does not list leads nowhere: you stay where
you are, and the turn is spent.

How to open doors. Some ways are barred by a door that has a colour. It is locked, and stays so until you open it with
the key of its colour, which lies in some room that you can reach without it. Carry the key to the room from which the
door leads, and say "open" and the door by its colour, such as "open red door". A door that was once opened stays open,
and the key stays with you. A key of another colour does not fit, however often you try.

How to take things. Keys, the treasure, and things of no use lie in rooms. Say "take" and the name of the thing as the
room gives it, such as "take red key". You can carry any number of things. What you took is no longer in the room. A
thing that lies in another room cannot be taken from where you stand: go there first.

What to aim at. You win as soon as you take the treasure, and only then. It lies behind the last door. Fewer turns are
better than many, and there is a bound on their number, so do not walk in circles: look first into rooms that you have
not seen, take each key that you find, and when you hold the key of a door that you passed, go back to it at once.

How to answer. Write the action alone, in small letters, on one line: no explanation before it, no full stop after it,
no quotation marks around it, and not two actions at once. An answer that is none of these actions is told back to you
as unknown, changes nothing in the house, and counts as a turn.
"""


@dataclass
class KeyDoor:
    """One play of `turns` actions: `observation` is what the agent reads next, None at the end.

    Nothing that is said ends the play: what is no action is answered and costs its turn. `fixed` plays have exactly
    `turns` turns, treasure or not, and pay a hash of what was said: so no group is without signal (Sojourn spends
    nothing on those), and both sides have the same work whatever the model can do.
    """

    layout: toy.Layout
    turns: int
    fixed: bool = False
    actions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = toy.State(self.layout.start)
        self.seen = {self.layout.start}
        self.observation: str | None = self.layout.describe(self.state, self.seen)

    @property
    def won(self) -> bool:
        return toy.TREASURE in self.state.carried

    @property
    def reward(self) -> float:
        return zlib.crc32("\n".join(self.actions).encode()) / 2**32 if self.fixed else float(self.won)

    def say(self, text: str) -> None:
        words = text[:200].lower().split()
        action, moves = " ".join(words), self.layout.moves(self.state)
        self.actions.append(action)
        known = action in moves
        if known:
            self.state = moves[action]
            self.seen.add(self.state.room)
        over = len(self.actions) == self.turns or (self.won and not self.fixed)
        answer = self.layout.describe(self.state, self.seen) if known else self.layout.refusal(self.state, words)
        self.observation = None if over else answer

    def expert(self) -> str:
        return self.layout.explore(self.state, self.seen)[0]


@dataclass(frozen=True, kw_only=True)
class KeyDoors:
    """Sojourn's environment family of `KeyDoor`; training plays the tasks from `first` on, in order."""

    rooms: int = 2
    side_rooms: int = 1
    doors: int = 1
    decoys: int = 0
    objects: int = 1
    turns: int = 8
    fixed: bool = False
    first: int = 0
    guide: bool = False

    @property
    def system(self) -> str:
        return toy.SYSTEM + GUIDE if self.guide else toy.SYSTEM

    def tasks(self, split: str) -> Sequence[Task]:
        sizes = {name: getattr(self, name) for name in ("rooms", "side_rooms", "doors", "decoys", "objects")}
        tasks = toy.Toy(**sizes, train=10**6).tasks(split)
        return tasks if split == "test" else Generated(lambda index: tasks[self.first + index], len(tasks) - self.first)

    def play(self, task: Task) -> KeyDoor:
        return KeyDoor(toy.layout(task), self.turns, self.fixed)

    def make(self, task: Task) -> Seated:
        return Seated(self.play(task), self.system)


@dataclass
class Seated:
    """`KeyDoor` as Sojourn plays it."""

    world: KeyDoor
    system: str

    async def start(self) -> Observation:
        return Observation(
            (Message(Role.USER, str(self.world.observation)),), system=(Message(Role.SYSTEM, self.system),)
        )

    async def step(self, agent: str, action: Message) -> Step:
        self.world.say(action.text)
        if self.world.observation is None:
            return Step(None, {agent: self.world.reward}, done=True, success=self.world.won)
        return Step(Observation((Message(Role.USER, self.world.observation),)), {agent: 0.0})

    async def close(self) -> None:
        pass

    def expert(self) -> str:
        return self.world.expert()


@dataclass(frozen=True, kw_only=True)
class Clock:
    """When each step of training ended, and its figures, as lines of JSON: a sink of Sojourn, and of the other side."""

    path: str
    stage: str = "rl"

    def bind(self, folder: Path, config: Mapping[str, Any]) -> Clock:
        return self

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        if stage == self.stage:
            with Path(self.path).open("a") as file:
                now = {"at": time.monotonic(), "cpu": time.process_time()}  # of all threads
                file.write(json.dumps({**now, "step": step, **values}) + "\n")

    def close(self) -> None:
        pass
