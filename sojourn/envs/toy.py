"""The toy world: text rooms with keys and doors, of which the agent sees only the room that it is in.

Ours, after the text games of TextWorld (Côté et al. 2018, arXiv:1806.11532) and the door-and-key tasks of MiniGrid.
It differs in what makes it learnable from scratch: about seventy words in all, sentences of fixed shape, no numbers.
Nothing can be lost (no dropping, no dead ends), so every state can still be won.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Any, ClassVar

from sojourn.abilities import Bounds
from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_within
from sojourn.envs.toy_layouts import COLOURS, OBJECTS, ROOMS, TREASURE, Layout, State, draw, expert_turns
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks.splits import SPLITS, family_of_task, make_tasks_by_kind, make_tasks_from_data
from sojourn.types import Episode, Message, Observation, Role, Step, Task

DIFFICULTY = ("rooms", "side_rooms", "doors", "decoys", "objects", "turns", "choices")
HOW = " A key opens the door of its colour. Say one action: go north, take red key, open red door."
SYSTEM = "Take the treasure." + HOW


@dataclass(frozen=True, kw_only=True)
class Toy:
    """A family of small text worlds of rooms, keys and doors, whose agent must take a treasure.

    With the map known, the defaults take 5 to 9 actions, and 8 rooms, 6 side rooms and 5 doors take 18 to 28; without
    it, up to twice as many.

    `rooms` lie on the way to the treasure and `side_rooms` off it; `doors` are locked on the way (the last before the
    treasure); `decoys` are keys that open nothing; `objects` are useless items. `turns` ends the play, lost, after that
    many actions (0: never, so that only the rollout's budget ends it). `choices` lists the possible actions in every
    observation. With several `levels` the tasks alternate between that many difficulties, from two rooms and nothing
    else up to what the other fields say, and each has the tag of its level: "level-0", "level-1" ... With `goals` a
    task asks for any room or item of its layout in place of the treasure, and says so at its beginning.

    Every task carries its difficulty, so that a task file can mix difficulties. A layout belongs to one split by its
    own hash: no layout of the test split is ever seen in training, whatever the seeds.
    """

    about: ClassVar[About] = About(
        source="ours, after TextWorld (Côté et al. 2018, arXiv:1806.11532) and the door-and-key tasks of MiniGrid",
        licence="Apache-2.0",
        smallest={"rooms": 2, "side_rooms": 0, "doors": 0, "decoys": 0, "objects": 0},
    )

    rooms: int = 3
    side_rooms: int = 2
    doors: int = 1
    decoys: int = 1
    objects: int = 1
    turns: int = 0
    choices: bool = False
    levels: int = 1
    goals: bool = False
    train: int = 100_000
    test: int = 1_000

    def __post_init__(self) -> None:
        limits = {
            "levels": (1, 100),
            "side_rooms": (0, len(ROOMS) - 2),
            "rooms": (2, len(ROOMS) - self.side_rooms),
            "doors": (0, min(self.rooms - 1, len(COLOURS))),
            "decoys": (0, len(COLOURS) - self.doors),
            "objects": (0, len(OBJECTS)),
            "turns": (0, 1_000_000),
            **SIZES,
        }
        require_within("toy", self, limits)

    def tasks(self, split: str) -> Sequence[Task]:
        if self.levels == 1:
            return make_tasks_from_data("toy", self, split, self._data)
        data = {f"level-{level}": self._difficulty(level) for level in range(self.levels)}
        return make_tasks_by_kind("toy", self, split, list(data), data.__getitem__)

    @property
    def _data(self) -> dict[str, Any]:
        """Returns the data of a task; without `goals` those that it had before there were any, and so the same id."""
        return {name: getattr(self, name) for name in DIFFICULTY} | ({"goals": True} if self.goals else {})

    def _difficulty(self, level: int) -> dict[str, Any]:
        """Returns the data of a task of one of several levels, which are spread evenly; halves are rounded up."""
        fraction, full = level / (self.levels - 1), self._data
        lowest = {name: low for name, low in self.about.smallest.items() if isinstance(low, int)}
        grown = {name: low + int(fraction * (full[name] - low) + 0.5) for name, low in lowest.items()}
        return full | grown

    def bounds(self, like: Task) -> Mapping[str, Bounds]:
        return {
            "rooms": Bounds(2, len(ROOMS)),
            "side_rooms": Bounds(0, len(ROOMS) - 2),
            "doors": Bounds(0, len(COLOURS)),
            "decoys": Bounds(0, len(COLOURS)),
            "objects": Bounds(0, len(OBJECTS)),
        }

    def make_task(self, like: Task, data: Mapping[str, Any], seed: int) -> Task | None:
        """Returns the task where its fields go together, and the expert needs at most its turns."""
        task = Task(like.env, dict(data), seed, "train")
        try:
            family_of_task(self, task)
        except ConfigError:
            return None  # such as more doors than rooms
        turns = task.data["turns"]
        return task if not turns or expert_turns(layout(task), goal_of(task), turns) <= turns else None

    def make(self, task: Task) -> ToyEnv:
        turns, choices = task.data["turns"], task.data["choices"]
        return ToyEnv(layout(task), turns=turns, choices=choices, goal=goal_of(task))

    def relabelled(self, episode: Episode) -> Sequence[Task]:
        """Returns tasks that ask for what an episode took and where it came, in this order."""
        task, [trajectory] = episode.task, episode.trajectories
        texts = [turn.message.text for turn in trajectory.turns if turn.message is not None]
        goals = [goal for goal in layout(task).reached(texts) if goal != goal_of(task)]
        return [replace(task, data={**task.data, "goal": goal}) for goal in goals]


@dataclass
class ToyEnv:
    layout: Layout
    turns: int = 0
    choices: bool = False
    used: int = 0
    goal: str = TREASURE  # an item to be taken, or a room to be entered
    state: State = field(init=False)
    seen: frozenset[str] = field(init=False)  # rooms

    def __post_init__(self) -> None:
        self.state = State(self.layout.start)
        self.seen = frozenset({self.layout.start})

    @property
    def done(self) -> bool:
        return self.state.reaches(self.goal) or (self.turns > 0 and self.used >= self.turns)

    async def start(self) -> Observation:
        wanted = f"Go to the {self.goal}." if self.goal in ROOMS else f"Take the {self.goal}."
        return self._observe(system=(Message(Role.SYSTEM, wanted + HOW),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("a toy world was given an action after its end: play each world once")
        after = self.layout.after(self.state, action.text)
        if after is None:
            raise ActionError(self.layout.refusal(self.state, action.text[:200].lower().split()))
        self.state = after
        self.seen |= {self.state.room}
        self.used += 1
        won = self.state.reaches(self.goal)
        if self.done:
            return Step(None, {agent: float(won)}, done=True, success=won)
        return Step(self._observe(), {agent: 0.0})

    async def close(self) -> None:
        pass

    async def fork(self) -> ToyEnv:
        copy = ToyEnv(self.layout, self.turns, self.choices, self.used, self.goal)
        copy.state, copy.seen = self.state, self.seen
        return copy

    def state_key(self) -> str:
        left = f"/{self.turns - self.used}" if self.turns else ""
        wanted = "" if self.goal == TREASURE else f"/{self.goal}"
        state = self.state
        carried, opened, seen = (",".join(sorted(names)) for names in (state.carried, state.opened, self.seen))
        return f"{self.layout.digest[:12]}/{state.room}/{carried}/{opened}/{seen}{left}{wanted}"

    def expert(self) -> str:
        """Returns the next action of an expert without the map."""
        return self.layout.advise(self.state, self.seen, self.goal)

    def _observe(self, system: tuple[Message, ...] = ()) -> Observation:
        text = Message(Role.USER, self.layout.describe(self.state, self.seen))
        choices = tuple(self.layout.moves(self.state)) if self.choices else ()
        return Observation((text,), system=system, choices=choices)


def goal_of(task: Task) -> str:
    """Returns what a task asks for: the treasure, unless its data say otherwise."""
    if "goal" in task.data or not task.data.get("goals"):
        return task.data.get("goal", TREASURE)
    made = layout(task)
    things = [thing for items in made.items.values() for thing in items]
    goals = sorted({*things, *made.exits} - {made.start})
    return random.Random(f"goal {task.split} {task.seed}").choice(goals)


def layout(task: Task) -> Layout:
    """Returns the layout of a task: the first layout of its seed whose hash belongs to the task's split."""
    return _layout(task.split, task.seed, tuple(task.data.items()))


@lru_cache(64)  # a group plays one task many times
def _layout(split: str, seed: int, size: tuple[tuple[str, int], ...]) -> Layout:
    for attempt in count():
        drawn = draw(random.Random(f"{split} {seed} {attempt}"), dict(size))
        if SPLITS[int(drawn.digest[:8], 16) % 2] == split:
            return drawn
    raise AssertionError("unreachable: count() does not end")
