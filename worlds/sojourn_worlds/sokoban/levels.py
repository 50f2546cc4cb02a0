"""Levels of Sokoban: drawn by playing backwards from the solved board, and solved by A* over pushes.

A cell is a number, row * size + column; a direction is what it adds. A state for the solver is where the boxes are and
which part of the floor the player can walk: how one walks between two pushes does not matter.
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

WORK = 20_000  # states that the solver looks at before it gives up
EASY = 1_000  # the same when a level is drawn: one that takes more is not used
ATTEMPTS = 4_000  # layouts that are drawn before a config counts as impossible
WAYS = ("up", "down", "left", "right")
Boxes = frozenset[int]


class Push(NamedTuple):
    box: int  # the cell it is pushed from
    step: int


class Size(NamedTuple):
    """What a level is drawn by."""

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
        return dict(zip(WAYS, (-self.size, self.size, -1, 1), strict=True))

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.text(self.boxes, self.player).encode()).hexdigest()

    @cached_property
    def far(self) -> dict[int, tuple[float, ...]]:
        """How many pushes a box needs from each cell to each goal if it were alone; the cells not named are dead."""
        ways = [self._pushed_to(goal) for goal in sorted(self.goals)]
        alive = sorted(set().union(*ways))
        return {cell: tuple(way.get(cell, math.inf) for way in ways) for cell in alive}

    def _pushed_to(self, goal: int) -> dict[int, int]:
        far = {goal: 0}
        queue = deque(far)
        while queue:
            cell = queue.popleft()
            for step in self.steps.values():
                pulled, behind = cell - step, cell - 2 * step
                if pulled not in far and pulled not in self.walls and behind >= 0 and behind not in self.walls:
                    far[pulled] = far[cell] + 1
                    queue.append(pulled)
        return far

    @cached_property
    def least(self) -> Callable[[Boxes], float]:
        """A bound on the pushes that are left: every box to a goal of its own, as if it were alone."""

        @lru_cache(4_096)
        def assign(rows: tuple[tuple[float, ...], ...], taken: int) -> float:
            if not rows:
                return 0.0
            free = [goal for goal in range(len(rows[0])) if not taken >> goal & 1]
            return min(rows[0][goal] + assign(rows[1:], taken | 1 << goal) for goal in free)

        return lambda boxes: assign(tuple(self.far[box] for box in sorted(boxes)), 0)

    def walk(self, boxes: Boxes, player: int) -> dict[int, int]:
        """The cells that can be walked to, nearest first, each with the one before it."""
        before = {player: player}
        queue = deque([player])
        while queue:
            cell = queue.popleft()
            for step in self.steps.values():
                then = cell + step
                if then not in before and then not in self.walls and then not in boxes:
                    before[then] = cell
                    queue.append(then)
        return before

    def pushes(self, boxes: Boxes, floor: dict[int, int]) -> Iterator[tuple[Push, Boxes]]:
        """Every push from a part of the floor that does not lose for sure, and where the boxes are after it."""
        for box in sorted(boxes):
            for step in self.steps.values():
                then = box + step
                if box - step in floor and then in self.far and then not in boxes:
                    after = boxes - {box} | {then}
                    if not self.frozen(after, then):
                        yield Push(box, step), after

    def frozen(self, boxes: Boxes, box: int) -> bool:
        """Whether the box is in a square of four that can never move again, with a box of it off the goals."""
        for row in (-self.size, self.size):
            for column in (-1, 1):
                square = (box, box + row, box + column, box + row + column)
                if all(cell in self.walls or cell in boxes for cell in square) and any(
                    cell in boxes and cell not in self.goals for cell in square
                ):
                    return True
        return False

    def lost(self, boxes: Boxes, box: int) -> bool:
        """Whether it can be seen at a glance that the last push, of the box that is here now, has lost the game."""
        return box not in self.far or self.frozen(boxes, box)

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
        """A level from its picture in text, a square with walls all round."""
        rows = text.split()
        cells = "".join(rows)
        found = {sign: [cell for cell, here in enumerate(cells) if here in sign] for sign in ("#", ".+*", "$*", "@+")}
        walls, goals, boxes, players = (frozenset(cells) for cells in found.values())
        return cls(len(rows), walls, goals, boxes, min(players))


def plan(level: Level, boxes: Boxes, player: int, work: int = WORK) -> tuple[Push, ...] | None:
    """The fewest pushes that solve the level from here; None where there are none, or finding them takes more work."""
    return _plan(level, boxes, min(level.walk(boxes, player)), work)


@lru_cache(8_192)
def _plan(level: Level, boxes: Boxes, corner: int, work: int) -> tuple[Push, ...] | None:
    """The plan is the same from every cell that can be walked to, so that walking never changes it."""
    if any(box not in level.far for box in boxes):
        return None
    start = (boxes, corner)
    cost = {start: 0}
    before: dict[tuple[Boxes, int], tuple[tuple[Boxes, int], Push]] = {}
    order = count()
    queue = [(level.least(boxes), next(order), start)]
    done = set()
    while queue and len(done) < work:
        _, _, state = heapq.heappop(queue)
        if state in done:
            continue
        done.add(state)
        here, corner = state
        if here == level.goals:
            return _pushes_to(before, state)
        for push, after in level.pushes(here, level.walk(here, corner)):
            then = (after, min(level.walk(after, push.box)))
            left = level.least(after)
            if cost[state] + 1 < cost.get(then, math.inf) and left < math.inf:
                cost[then] = cost[state] + 1
                before[then] = (state, push)
                heapq.heappush(queue, (cost[then] + left, -next(order), then))
    return None


def _pushes_to(before: dict, state: tuple[Boxes, int]) -> tuple[Push, ...]:
    pushes = []
    while state in before:
        state, push = before[state]
        pushes.append(push)
    return tuple(pushes[::-1])


def next_step(level: Level, boxes: Boxes, player: int, push: Push) -> int:
    """The step that walks a shortest way to where the push is done from, or does it."""
    cell = push.box - push.step
    if cell == player:
        return push.step
    before = level.walk(boxes, player)
    while before[cell] != player:
        cell = before[cell]
    return cell - player


def moves(level: Level) -> int | None:
    """How many actions the plan of a level takes."""
    pushes = plan(level, level.boxes, level.player, EASY)
    if pushes is None:
        return None
    boxes, player, total = level.boxes, level.player, 0
    for push in pushes:
        before, cell = level.walk(boxes, player), push.box - push.step
        while cell != player:
            cell, total = before[cell], total + 1
        boxes, player, total = boxes - {push.box} | {push.box + push.step}, push.box, total + 1
    return total


@lru_cache(64)  # a group plays one task many times
def level_of(seed: int, split: str, size: Size) -> Level:
    """The first level of a seed that is of the split, by its own hash, and that the solver solves in half the turns."""
    for attempt in range(ATTEMPTS):
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
    """Boxes on their goals, pulled away at random; None where the floor is in parts or a box is back on a goal."""
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
    if len(level.walk(frozenset(), player)) < len(free):
        return None
    boxes, last = goals, None
    for _ in range(size.pulls):
        floor = level.walk(boxes, player)
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
    floor = sorted(level.walk(boxes, player))
    return Level(side, walls, goals, boxes, rng.choice(floor))
