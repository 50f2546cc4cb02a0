"""The toy world: text rooms with keys and doors, of which the agent sees only the room that it is in.

Ours, after the text games of TextWorld (Côté et al. 2018, arXiv:1806.11532) and the door-and-key tasks of MiniGrid.
It differs in what makes it learnable from scratch: about seventy words in all, sentences of fixed shape, no numbers.
Nothing can be lost (no dropping, no dead ends), so every state can still be won.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count
from typing import ClassVar, NamedTuple

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_within
from sojourn.errors import ActionError, InfrastructureError
from sojourn.tasks.splits import SPLITS, make_tasks_from_data
from sojourn.types import Message, Observation, Role, Step, Task

TREASURE = "treasure"
# fmt: off
ROOMS = [
    "attic", "bakery", "bedroom", "cave", "cellar", "chapel", "closet", "forge", "garden", "hall", "kitchen",
    "library", "lobby", "office", "orchard", "pantry", "porch", "school", "stable", "studio", "study",
    "temple", "tower", "workshop",
]
# fmt: on
COLOURS = ["black", "blue", "brown", "green", "purple", "red", "white", "yellow"]
OBJECTS = ["apple", "book", "bottle", "bowl", "candle", "cup", "hammer", "lamp", "map", "mirror", "rope", "spoon"]
WAYS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
DIFFICULTY = ("rooms", "side_rooms", "doors", "decoys", "objects", "turns", "choices")
SYSTEM = "Take the treasure. A key opens the door of its colour. Say one action: go north, take red key, open red door."


class Exit(NamedTuple):
    room: str
    colour: str = ""  # of the locked door; empty where there is none


class State(NamedTuple):
    room: str
    carried: frozenset[str] = frozenset()
    opened: frozenset[str] = frozenset()  # colours


@dataclass(frozen=True)
class Layout:
    """A static layout: the start room, the exits of every room by direction, and the items in it."""

    start: str
    exits: Mapping[str, Mapping[str, Exit]]
    items: Mapping[str, tuple[str, ...]]

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(repr((self.start, self.exits, self.items)).encode()).hexdigest()

    def here(self, state: State) -> list[str]:
        return [item for item in self.items[state.room] if item not in state.carried]

    def shut(self, state: State) -> dict[str, str]:
        """Returns the colours of the shut doors of the current room, by direction."""
        ways = self.exits[state.room].items()
        return {way: exit.colour for way, exit in ways if exit.colour and exit.colour not in state.opened}

    def moves(self, state: State) -> dict[str, State]:
        """Returns every possible action with the state that it leads to."""
        shut, exits = self.shut(state), self.exits[state.room]
        moves = {f"take {item}": state._replace(carried=state.carried | {item}) for item in self.here(state)}
        for colour in shut.values():
            if f"{colour} key" in state.carried:
                moves[f"open {colour} door"] = state._replace(opened=state.opened | {colour})
        return moves | {f"go {way}": state._replace(room=exits[way].room) for way in exits if way not in shut}

    def plan(self, state: State) -> list[str]:
        """Returns a shortest list of actions to the treasure, given the whole map."""
        return self._search(state, lambda now: TREASURE in now.carried)

    def explore(self, state: State, seen: Collection[str]) -> list[str]:
        """Returns a shortest list of actions to something new (a key, an open door, or a room not yet `seen`), without
        knowledge of the map; it prefers rooms behind opened doors."""
        behind = {exit.room for exits in self.exits.values() for exit in exits.values() if exit.colour in state.opened}

        def new(now: State) -> bool:
            return now.room not in seen or len(now.carried | now.opened) > len(state.carried | state.opened)

        if TREASURE not in self.here(state) and behind - set(seen):
            return self._search(state, lambda now: now.room in behind - set(seen))
        return self._search(state, new)

    def _search(self, state: State, ends: Callable[[State], bool]) -> list[str]:
        """Returns the first actions, breadth-first, to a state that `ends`; useless objects are not taken."""
        before: dict[State, tuple[State, str] | None] = {state: None}
        queue = deque([state])
        while queue:
            now = queue.popleft()
            if ends(now):
                return _steps(before, now)
            for action, then in self.moves(now).items():
                if then not in before and action.removeprefix("take ") not in OBJECTS:
                    before[then] = (now, action)
                    queue.append(then)
        raise InfrastructureError(f"nothing new can be reached from {state}: this is a bug in the toy's layouts")

    def describe(self, state: State, seen: Collection[str]) -> str:
        """Returns the text of the current room; ways to rooms that were `seen` name their rooms."""
        shut, exits = self.shut(state), self.exits[state.room]
        ways = [f"{w} to {e.room}" if e.room in seen else w for w, e in exits.items() if w not in shut]
        lines = [f"The {state.room}."]
        if here := self.here(state):
            lines.append(f"Here: {', '.join(here)}.")
        if ways:
            lines.append(f"Ways: {', '.join(ways)}.")
        lines += [f"Shut: {colour} door {way}." for way, colour in shut.items()]
        if state.carried:
            lines.append(f"You carry: {', '.join(sorted(state.carried))}.")
        return " ".join(lines)

    def refusal(self, state: State, words: Sequence[str]) -> str:
        """Returns the reason why an action that is not among the moves is refused, for the agent to read."""
        match words:
            case ["go", way] if way in WAYS:
                colour = self.shut(state).get(way)
                return f"The {colour} door is shut, open it first." if colour else f"You cannot go {way} here."
            case ["open", colour, "door"] if colour in COLOURS:
                there = colour in self.shut(state).values()
                return f"You need the {colour} key." if there else f"There is no shut {colour} door here."
            case ["take", *thing] if 1 <= len(thing) <= 2:
                return f"There is no {' '.join(thing)[:30]} here."
        return f'"{" ".join(words)[:30]}" is no action, say go, take or open.'


def _steps(before: Mapping[State, tuple[State, str] | None], last: State) -> list[str]:
    steps: list[str] = []
    link = before[last]
    while link is not None:
        steps.append(link[1])
        link = before[link[0]]
    return steps[::-1]


@dataclass(frozen=True, kw_only=True)
class Toy:
    """A family of small text worlds of rooms, keys and doors, whose agent must take a treasure.

    With the map known, the defaults take 5 to 9 actions, and 8 rooms, 6 side rooms and 5 doors take 18 to 28; without
    it, up to twice as many.

    `rooms` lie on the way to the treasure and `side_rooms` off it; `doors` are locked on the way (the last before the
    treasure); `decoys` are keys that open nothing; `objects` are useless items. `turns` ends the play, lost, after that
    many actions (0: never, so that only the rollout's budget ends it). `choices` lists the possible actions in every
    observation.

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
    train: int = 100_000
    test: int = 1_000

    def __post_init__(self) -> None:
        limits = {
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
        return make_tasks_from_data("toy", self, split, {name: getattr(self, name) for name in DIFFICULTY})

    def make(self, task: Task) -> ToyEnv:
        turns, choices = task.data["turns"], task.data["choices"]
        return ToyEnv(layout(task), turns=turns, choices=choices)


@dataclass
class ToyEnv:
    layout: Layout
    turns: int = 0
    choices: bool = False
    used: int = 0
    state: State = field(init=False)
    seen: frozenset[str] = field(init=False)  # rooms

    def __post_init__(self) -> None:
        self.state = State(self.layout.start)
        self.seen = frozenset({self.layout.start})

    @property
    def done(self) -> bool:
        return TREASURE in self.state.carried or (self.turns > 0 and self.used >= self.turns)

    async def start(self) -> Observation:
        return self._observe(system=(Message(Role.SYSTEM, SYSTEM),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("a toy world was given an action after its end: play each world once")
        words = action.text[:200].lower().split()
        moves = self.layout.moves(self.state)
        command = " ".join(words)
        if command not in moves or len(action.text) > 200:
            raise ActionError(self.layout.refusal(self.state, words))
        self.state = moves[command]
        self.seen |= {self.state.room}
        self.used += 1
        won = TREASURE in self.state.carried
        if self.done:
            return Step(None, {agent: float(won)}, done=True, success=won)
        return Step(self._observe(), {agent: 0.0})

    async def close(self) -> None:
        pass

    async def fork(self) -> ToyEnv:
        copy = ToyEnv(self.layout, self.turns, self.choices, self.used)
        copy.state, copy.seen = self.state, self.seen
        return copy

    def state_key(self) -> str:
        left = f"/{self.turns - self.used}" if self.turns else ""
        state = self.state
        carried, opened, seen = (",".join(sorted(names)) for names in (state.carried, state.opened, self.seen))
        return f"{self.layout.digest[:12]}/{state.room}/{carried}/{opened}/{seen}{left}"

    def expert(self) -> str:
        """Returns the next action of an expert without the map: it takes keys, opens doors and explores unseen
        rooms."""
        return self.layout.explore(self.state, self.seen)[0]

    def _observe(self, system: tuple[Message, ...] = ()) -> Observation:
        text = Message(Role.USER, self.layout.describe(self.state, self.seen))
        choices = tuple(self.layout.moves(self.state)) if self.choices else ()
        return Observation((text,), system=system, choices=choices)


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


def draw(rng: random.Random, size: Mapping[str, int]) -> Layout:
    """Returns a random layout; `size` holds the difficulty fields of `Toy`."""
    names = rng.sample(ROOMS, size["rooms"] + size["side_rooms"])
    path, sides = names[: size["rooms"]], names[size["rooms"] :]
    places = _place_path(rng, path)
    parents: dict[str, str] = dict(zip(path[1:], path, strict=False))
    for side in sides:
        parents[side], places[side] = rng.choice(_free_places(places, avoid=path[-1]))
    colours = rng.sample(COLOURS, size["doors"] + size["decoys"])
    on_way = [*rng.sample(path[1:-1], size["doors"] - 1), path[-1]] if size["doors"] else []
    locked = dict(zip([room for room in path if room in on_way], colours, strict=False))
    depth: dict[str, int] = {}  # how many doors must be open to enter each room
    for room in names:
        depth[room] = depth.get(parents.get(room, ""), 0) + (room in locked)
    items: dict[str, list[str]] = {room: [] for room in names}
    items[path[-1]].append(TREASURE)
    outside = [room for room in names if room != path[-1]]
    for number, colour in enumerate(colours):
        reachable = [room for room in outside if depth[room] <= number] if number < len(locked) else outside
        items[rng.choice(reachable)].append(f"{colour} key")
    for thing in rng.sample(OBJECTS, size["objects"]):
        items[rng.choice(outside)].append(thing)
    ordered = {room: tuple(sorted(things)) for room, things in sorted(items.items())}
    return Layout(path[0], _connect(names, parents, places, locked), ordered)


def _place_path(rng: random.Random, path: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Places the rooms of the path on a grid, each beside the previous one; starts again where the path blocks
    itself."""
    while True:
        x = y = 0
        places = {path[0]: (x, y)}
        for room in path[1:]:
            steps = [(x + dx, y + dy) for dx, dy in WAYS.values() if (x + dx, y + dy) not in places.values()]
            if not steps:
                break
            places[room] = x, y = rng.choice(steps)
        else:
            return places


def _free_places(places: Mapping[str, tuple[int, int]], avoid: str) -> list[tuple[str, tuple[int, int]]]:
    """Returns the pairs of a room and a free place beside it, without those of the room to `avoid`."""
    taken = set(places.values())
    around = [(room, (x + dx, y + dy)) for room, (x, y) in places.items() for dx, dy in WAYS.values() if room != avoid]
    return [(room, place) for room, place in around if place not in taken]


def _connect(
    names: Sequence[str],
    parents: Mapping[str, str],
    places: Mapping[str, tuple[int, int]],
    locked: Mapping[str, str],
) -> dict[str, dict[str, Exit]]:
    exits: dict[str, dict[str, Exit]] = {room: {} for room in names}
    for room, parent in parents.items():
        (x, y), (px, py) = places[room], places[parent]
        way = next(way for way, step in WAYS.items() if step == (x - px, y - py))
        exits[parent][way] = Exit(room, locked.get(room, ""))
        exits[room][BACK[way]] = Exit(parent, locked.get(room, ""))
    return {room: {way: exits[room][way] for way in WAYS if way in exits[room]} for room in sorted(exits)}
