"""Levels of Sokoban: drawn by reverse play from the solved board, and solved by A* over pushes.

A cell is a number, row * size + column; a direction is the number that a move adds to it. A state of the solver is
where the boxes are and which part of the floor the player can reach: how one walks between two pushes does not matter.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import NamedTuple

from sojourn.errors import ConfigError
from sojourn.tasks.splits import SPLITS

MAX_STATES = 20_000  # that the solver looks at before it gives up
MAX_STATES_WHEN_DRAWN = 1_000  # the same when a level is drawn: one that takes more is not used
MAX_ATTEMPTS = 4_000  # draws of a layout before a config counts as impossible
MAX_ATTEMPTS_WHEN_MADE = 80  # the same before a task that a curriculum proposes counts as impossible
MOVES = ("up", "down", "left", "right")
Boxes = frozenset[int]


class Push(NamedTuple):
    box: int  # the cell that the box is pushed from
    step: int


class Size(NamedTuple):
    """The parameters by which a level is drawn."""

    size: int
    boxes: int
    walls: float
    pulls: int
    turns: int


@dataclass(frozen=True)
class Level:
    size: int
    walls: frozenset[int]
    goals: frozenset[int]
    boxes: Boxes
    player: int

    def __deepcopy__(self, memo: object) -> Level:
        return self

    @cached_property
    def steps(self) -> dict[str, int]:
        return dict(zip(MOVES, (-self.size, self.size, -1, 1), strict=True))

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.text(self.boxes, self.player).encode()).hexdigest()

    @cached_property
    def push_distances(self) -> dict[int, tuple[float, ...]]:
        """Returns how many pushes a lone box needs from each cell to each goal; cells without an entry are dead."""
        ways = [self._pushed_to(goal) for goal in sorted(self.goals)]
        alive = sorted(set().union(*ways))
        return {cell: tuple(move.get(cell, math.inf) for move in ways) for cell in alive}

    def _pushed_to(self, goal: int) -> dict[int, int]:
        push_distances = {goal: 0}
        queue = deque(push_distances)
        while queue:
            cell = queue.popleft()
            for step in self.steps.values():
                pulled, behind = cell - step, cell - 2 * step
                if (
                    pulled not in push_distances
                    and pulled not in self.walls
                    and behind >= 0
                    and behind not in self.walls
                ):
                    push_distances[pulled] = push_distances[cell] + 1
                    queue.append(pulled)
        return push_distances

    @cached_property
    def min_pushes(self) -> Callable[[Boxes], float]:
        """Returns a lower bound on the pushes that are left, as if each box went to a goal of its own unhindered."""

        @lru_cache(4_096)
        def assign(rows: tuple[tuple[float, ...], ...], taken: int) -> float:
            if not rows:
                return 0.0
            free = [goal for goal in range(len(rows[0])) if not taken >> goal & 1]
            return min(rows[0][goal] + assign(rows[1:], taken | 1 << goal) for goal in free)

        return lambda boxes: assign(tuple(self.push_distances[box] for box in sorted(boxes)), 0)

    def reachable(self, boxes: Boxes, player: int) -> dict[int, int]:
        """Returns the cells that the player can walk to, nearest first, each with the cell before it on the way."""
        came_from = {player: player}
        queue = deque([player])
        while queue:
            cell = queue.popleft()
            for step in self.steps.values():
                then = cell + step
                if then not in came_from and then not in self.walls and then not in boxes:
                    came_from[then] = cell
                    queue.append(then)
        return came_from

    def pushes(self, boxes: Boxes, floor: dict[int, int]) -> Iterator[tuple[Push, Boxes]]:
        """Yields every push from a part of the floor that does not lose for sure, with the boxes after it."""
        for box in sorted(boxes):
            for step in self.steps.values():
                then = box + step
                if box - step in floor and then in self.push_distances and then not in boxes:
                    after = boxes - {box} | {then}
                    if not self.frozen(after, then):
                        yield Push(box, step), after

    def frozen(self, boxes: Boxes, box: int) -> bool:
        """Returns whether the box is in a square of four that can never move again, with one of its boxes off the
        goals.
        """
        for row in (-self.size, self.size):
            for column in (-1, 1):
                square = (box, box + row, box + column, box + row + column)
                if all(cell in self.walls or cell in boxes for cell in square) and any(
                    cell in boxes and cell not in self.goals for cell in square
                ):
                    return True
        return False

    def lost(self, boxes: Boxes, box: int) -> bool:
        """Returns whether the last push, of the box that is here now, has visibly lost the level."""
        return box not in self.push_distances or self.frozen(boxes, box)

    def text(self, boxes: Boxes, player: int) -> str:
        cells = []
        for cell in range(self.size * self.size):
            goal = cell in self.goals
            if cell in self.walls:
                cells.append("#")
            elif cell == player:
                cells.append("+" if goal else "@")
            elif cell in boxes:
                cells.append("*" if goal else "$")
            else:
                cells.append("." if goal else "_")
        return "\n".join("".join(cells[row : row + self.size]) for row in range(0, len(cells), self.size))

    @classmethod
    def parse(cls, text: str) -> Level:
        """Returns the level of a picture in text, which is a square with walls all around."""
        rows = text.split()
        cells = "".join(rows)
        cells_by_sign = {
            sign: [cell for cell, here in enumerate(cells) if here in sign] for sign in ("#", ".+*", "$*", "@+")
        }
        walls, goals, boxes, players = (frozenset(cells) for cells in cells_by_sign.values())
        return cls(len(rows), walls, goals, boxes, min(players))


def plan(level: Level, boxes: Boxes, player: int, max_states: int = MAX_STATES) -> tuple[Push, ...] | None:
    """Returns the fewest pushes that solve the level from here.

    Returns None where there are none, or where the solver would look at more than `max_states` states.
    """
    return _plan(level, boxes, min(level.reachable(boxes, player)), max_states)


@lru_cache(8_192)
def _plan(level: Level, boxes: Boxes, corner: int, max_states: int) -> tuple[Push, ...] | None:
    """Solves from the smallest reachable cell: the plan is the same from every reachable cell, so walking never changes
    it.
    """
    if any(box not in level.push_distances for box in boxes):
        return None
    start = (boxes, corner)
    cost = {start: 0}
    came_from: dict[tuple[Boxes, int], tuple[tuple[Boxes, int], Push]] = {}
    order = count()
    queue = [(level.min_pushes(boxes), next(order), start)]
    done = set()
    while queue and len(done) < max_states:
        _, _, state = heapq.heappop(queue)
        if state in done:
            continue
        done.add(state)
        here, corner = state
        if here == level.goals:
            return _pushes_to(came_from, state)
        for push, after in level.pushes(here, level.reachable(here, corner)):
            then = (after, min(level.reachable(after, push.box)))
            left = level.min_pushes(after)
            if cost[state] + 1 < cost.get(then, math.inf) and left < math.inf:
                cost[then] = cost[state] + 1
                came_from[then] = (state, push)
                heapq.heappush(queue, (cost[then] + left, -next(order), then))
    return None


def _pushes_to(came_from: dict, state: tuple[Boxes, int]) -> tuple[Push, ...]:
    pushes = []
    while state in came_from:
        state, push = came_from[state]
        pushes.append(push)
    return tuple(pushes[::-1])


def next_step(level: Level, boxes: Boxes, player: int, push: Push) -> int:
    """Returns the move on a shortest way to where the push is made from, or the push itself."""
    cell = push.box - push.step
    if cell == player:
        return push.step
    came_from = level.reachable(boxes, player)
    while came_from[cell] != player:
        cell = came_from[cell]
    return cell - player


def moves(level: Level) -> int | None:
    """Returns how many actions the plan of a level takes, None where it has no plan."""
    pushes = plan(level, level.boxes, level.player, MAX_STATES_WHEN_DRAWN)
    if pushes is None:
        return None
    boxes, player, total = level.boxes, level.player, 0
    for push in pushes:
        came_from, cell = level.reachable(boxes, player), push.box - push.step
        while cell != player:
            cell, total = came_from[cell], total + 1
        boxes, player, total = boxes - {push.box} | {push.box + push.step}, push.box, total + 1
    return total


@lru_cache(64)  # a group plays one task many times
def level_of(seed: int, split: str, size: Size, attempts: int = MAX_ATTEMPTS) -> Level:
    """Returns the seed's first level whose hash falls to the split and that the solver solves in half the turns."""
    for attempt in range(attempts):
        rng = random.Random(f"sokoban {split} {seed} {attempt}")
        level = _draw(rng, size._replace(pulls=max(1, size.pulls - attempt // 40)))
        if level is not None and SPLITS[int(level.digest[:8], 16) % 2] == split:
            taken = moves(level)
            if taken is not None and 2 * taken <= size.turns:
                return level
    raise ConfigError(
        f"sokoban: no level of {size.boxes} boxes in {size.turns} turns was found for seed {seed}: ask for fewer boxes "
        "or walls, or for more turns"
    )


def _draw(rng: random.Random, size: Size) -> Level | None:
    """Draws a level: boxes on their goals, pulled away at random.

    Returns None where the floor is not connected or a box is back on a goal.
    """
    side = size.size
    edge = {cell for cell in range(side * side) if cell // side in (0, side - 1) or cell % side in (0, side - 1)}
    inside = [cell for cell in range(side * side) if cell not in edge]
    walls = frozenset(edge | set(rng.sample(inside, round(size.walls * len(inside)))))
    free = [cell for cell in inside if cell not in walls]
    if len(free) < 2 * size.boxes + 2:
        return None
    goals = frozenset(rng.sample(free, size.boxes))
    player = rng.choice([cell for cell in free if cell not in goals])
    level = Level(side, walls, goals, goals, player)
    if len(level.reachable(frozenset(), player)) < len(free):
        return None
    boxes, last = goals, None
    for _ in range(size.pulls):
        floor = level.reachable(boxes, player)
        pulls = [
            Push(box, step)
            for box in sorted(boxes)
            for step in level.steps.values()
            if box + step in floor and box + 2 * step in floor and (box, -step) != last
        ]
        if not pulls:
            break
        box, step = rng.choice(pulls)
        boxes, player, last = boxes - {box} | {box + step}, box + 2 * step, (box + step, step)
    if boxes & goals:
        return None
    floor = sorted(level.reachable(boxes, player))
    return Level(side, walls, goals, boxes, rng.choice(floor))
