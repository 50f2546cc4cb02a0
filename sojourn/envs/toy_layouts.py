"""The layouts of the toy world: its rooms, what is in them, what can be done there, and how they are drawn."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sojourn.errors import InfrastructureError

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


class Exit(NamedTuple):
    room: str
    colour: str = ""  # of the locked door; empty where there is none


class State(NamedTuple):
    room: str
    carried: frozenset[str] = frozenset()
    opened: frozenset[str] = frozenset()  # colours

    def reaches(self, goal: str) -> bool:
        """Returns whether an item was taken, or a room is entered."""
        return goal in self.carried or goal == self.room


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

    def after(self, state: State, text: str) -> State | None:
        """Returns the state after an action, None where the action is impossible or too long."""
        return self.moves(state).get(" ".join(text.lower().split())) if len(text) <= 200 else None

    def reached(self, texts: Sequence[str]) -> list[str]:
        """Returns the items that a play's actions take, and the rooms that they enter for the first time, in order."""
        state, goals = State(self.start), [self.start]
        for text in texts:
            state = self.after(state, text) or state
            goals += [goal for goal in (*sorted(state.carried), state.room) if goal not in goals]
        return goals[1:]

    def plan(self, state: State) -> list[str]:
        """Returns a shortest list of actions to the treasure, given the whole map."""
        return self._search(state, lambda now: TREASURE in now.carried)

    def advise(self, state: State, seen: Collection[str], goal: str) -> str:
        """Returns the next action of an expert without the map: it takes keys, opens doors and explores unseen rooms,
        until it sees the item or comes to the room that is asked for."""
        return f"take {goal}" if goal in self.here(state) else self.explore(state, seen, goal)[0]

    def explore(self, state: State, seen: Collection[str], goal: str = TREASURE) -> list[str]:
        """Returns a shortest list of actions to something new (a key, an open door, or a room not yet `seen`, or the
        item that is asked for, where it was left), without knowledge of the map; it prefers rooms behind opened
        doors."""
        behind = {exit.room for exits in self.exits.values() for exit in exits.values() if exit.colour in state.opened}

        def new(now: State) -> bool:
            return now.room not in seen or len(now.carried | now.opened) > len(state.carried | state.opened)

        if TREASURE not in self.here(state) and behind - set(seen):
            return self._search(state, lambda now: now.room in behind - set(seen))
        return self._search(state, new, goal)

    def _search(self, state: State, ends: Callable[[State], bool], goal: str = TREASURE) -> list[str]:
        """Returns the first actions, breadth-first, to a state that `ends`; objects are not taken, but for the goal."""
        before: dict[State, tuple[State, str] | None] = {state: None}
        useless, queue = set(OBJECTS) - {goal}, deque([state])
        while queue:
            now = queue.popleft()
            if ends(now):
                return _steps(before, now)
            for action, then in self.moves(now).items():
                if then not in before and action.removeprefix("take ") not in useless:
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


def expert_turns(layout: Layout, goal: str, most: int) -> int:
    """Returns how many actions the expert without the map takes to a goal; `most` + 1 where it takes more."""
    state, seen = State(layout.start), {layout.start}
    for turn in range(1, most + 1):
        state = layout.moves(state)[layout.advise(state, seen, goal)]
        seen.add(state.room)
        if state.reaches(goal):
            return turn
    return most + 1


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
