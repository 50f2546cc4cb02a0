"""A grid with blocks of several colours, one of which pays: the leader knows which, the follower has to see it.

Ours, after ColorGrid (Risukhin et al. 2025, arXiv:2501.10593), where two also share a goal that only the leader knows
and that may change on the way. It differs in that the two move in turn on a small grid that is shown in text, that
blocks do not come back, and that only what the follower collects is paid, to both of them: so the leader's moves are
worth what they tell.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.errors import ActionError, ConfigError
from sojourn.tasks.splits import of_task, tasks_of
from sojourn.types import Task
from sojourn_worlds.table import Table, pick

COLOURS = ("red", "green", "blue", "yellow")
SEATS = ("leader", "follower")
WAYS = ("up", "down", "left", "right", "stay")
ATTEMPTS = 500  # grids that are drawn before a config counts as impossible


@dataclass(frozen=True, kw_only=True)
class ColorGrid:
    """Goal inference on a grid of `size` by `size`, with `blocks` of each of `colours`.

    Blocks of one colour pay 1 / `target` when the follower walks onto them, others cost as much. The play ends when the
    follower has `target` blocks of the right colour, or as many wrong ones, or after `turns` of its moves; it succeeds
    when there was no wrong one. With `switch` another colour begins to pay after every so many moves.

    `opponent`: "leader", where the world leads: it takes blocks that pay, a shortest way, and leaves as many as the
    follower needs, then stays; the agent is the follower. Or "self", where the policy sits in both seats. The expert
    follower knows the colour. A wrong block cannot be given back.
    """

    about: ClassVar[About] = About(
        source="ours, after ColorGrid (Risukhin et al. 2025, arXiv:2501.10593)",
        licence="Apache-2.0",
        seats="1-2",
        smallest={"size": 4, "colours": 2, "blocks": 2, "target": 1, "turns": 12},
    )

    size: int = 6
    colours: int = 3
    blocks: int = 4
    target: int = 2
    switch: int = 0
    turns: int = 30
    opponent: Literal["leader", "self"] = "leader"
    choices: bool = False
    train: int = 100_000
    test: int = 1_000

    def __post_init__(self) -> None:
        limits = {
            "size": (3, 12),
            "colours": (2, len(COLOURS)),
            "blocks": (2, self.size**2 // (3 * max(self.colours, 1))),
            "target": (1, self.blocks - 1),
            "switch": (0, 1_000),
            "turns": (2 * self.size * self.target, 10_000),
        }
        require_within("colorgrid", self, limits | SIZES)
        require_one_of("colorgrid", self, {"opponent": ("leader", "self")})

    @property
    def seats(self) -> tuple[str, ...]:
        return SEATS if self.opponent == "self" else ("agent",)

    def tasks(self, split: str) -> Sequence[Task]:
        return tasks_of("colorgrid", self, split)

    def make(self, task: Task) -> Table:
        own = of_task(self, task)
        for attempt in range(ATTEMPTS):
            grid = draw(own, random.Random(f"colorgrid {task.seed} {attempt}"))
            if grid.open() and grid.led():
                if own.opponent == "self":
                    return Table(grid, choices=own.choices)
                return Table(grid, {"leader": Grid.expert}, alone="follower", choices=own.choices)
        raise ConfigError(
            f"colorgrid: no grid was found in which {own.target} blocks can be collected in {own.turns} turns: ask for "
            "more turns, fewer blocks, or a rarer switch"
        )


def draw(config: ColorGrid, rng: random.Random) -> Grid:
    names = COLOURS[: config.colours]
    cells = rng.sample(range(config.size**2), config.colours * config.blocks + 2)
    placed = {cell: names[number % config.colours] for number, cell in enumerate(cells[2:])}
    pays = [rng.choice(names)]
    for _ in range(config.turns // config.switch if config.switch else 0):
        pays.append(rng.choice([name for name in names if name != pays[-1]]))
    return Grid(config, tuple(pays), placed, {"leader": cells[0], "follower": cells[1]})


@dataclass
class Grid:
    config: ColorGrid
    pays: tuple[str, ...]  # the colour that pays, by period
    blocks: dict[int, str]  # their colours, by cell
    at: dict[str, int]
    moved: int = 0  # moves of both
    right: int = 0
    wrong: int = 0
    did: str = ""  # what the other did last

    @property
    def goal(self) -> str:
        return self.pays[self.moved // 2 // self.config.switch if self.config.switch else 0]

    @property
    def mover(self) -> str | None:
        target = self.config.target
        if target in (self.right, self.wrong) or self.moved >= 2 * self.config.turns:
            return None
        return SEATS[self.moved % 2]

    def brief(self, seat: str) -> str:
        names = COLOURS[: self.config.colours]
        signs = ", ".join(f"{name[0]} {name}" for name in names)
        knows = "You alone know which" if seat == "leader" else "Only the leader knows which: watch where it goes"
        changes = ", and it may change" if self.config.switch else ""
        return (
            f"A grid with blocks of {len(names)} colours: {signs}. L is the leader, F the follower, X both "
            "in one cell. Who walks onto a block takes it. Blocks of one colour pay, the others cost. "
            f"{knows}{changes}. "
            f"What the follower takes counts for both; it should get {self.config.target} that pay. "
            f"You are the {seat}. Say one move: {', '.join(WAYS)}."
        )

    def view(self, seat: str) -> str:
        size = self.config.size
        cells = [self.blocks.get(cell, ".")[0] for cell in range(size * size)]
        for name, cell in self.at.items():
            cells[cell] = "X" if cells[cell] in "LF" else name[0].upper()
        lines = ["".join(cells[row : row + size]) for row in range(0, size * size, size)]
        told = [self.did] if self.did else []
        if seat == "leader":
            told.append(f"Now {self.goal} pays.")
        return "\n".join([*lines, " ".join(told)] if told else lines)

    def choices(self) -> Sequence[str]:
        assert self.mover is not None
        return [way for way in WAYS if self._then(self.at[self.mover], way) is not None]

    def play(self, said: str) -> Mapping[str, float]:
        way = WAYS[pick(said, WAYS)]
        seat = self.mover
        assert seat is not None
        then = self._then(self.at[seat], way)
        if then is None:
            raise ActionError(f"You cannot go {way}: the grid ends there.")
        goal = self.goal
        taken = self.blocks.pop(then, "")
        self.at[seat] = then
        self.moved += 1
        went = "stayed" if way == "stay" else f"went {way}"
        self.did = f"The {seat} {went}{f' and took a {taken} block' if taken else ''}."
        if seat == "leader":
            return {}
        if not taken:
            return dict.fromkeys(SEATS, 0.0)
        self.right += taken == goal
        self.wrong += taken != goal
        return dict.fromkeys(SEATS, (1 if taken == goal else -1) / self.config.target)

    def success(self) -> bool:
        return self.right == self.config.target and not self.wrong

    def info(self) -> Mapping[str, float]:
        return {"right": float(self.right), "wrong": float(self.wrong)}

    def key(self) -> str:
        blocks = "".join(f"{cell}{colour[0]}" for cell, colour in sorted(self.blocks.items()))
        return f"colorgrid/{blocks}/{self.at}/{self.moved}/{self.right}/{self.wrong}/{self.goal}"

    def expert(self) -> str:
        """A step to the nearest block that pays, round the others; the leader leaves what the follower needs."""
        left = sum(colour == self.goal for colour in self.blocks.values())
        if self.mover == "leader" and left <= self.config.target - self.right:
            return "stay"
        assert self.mover is not None
        return self._towards(self.at[self.mover])

    def open(self) -> bool:
        """Returns whether every block can be reached from every free cell without walking over another block."""
        size = self.config.size
        free = {cell for cell in range(size * size) if cell not in self.blocks}
        found, queue = {min(free)}, deque([min(free)])
        while queue:
            cell = queue.popleft()
            for way in WAYS[:4]:
                then = self._then(cell, way)
                if then in free and then not in found:
                    found.add(then)
                    queue.append(then)
        beside = {self._then(cell, way) for cell in found for way in WAYS}
        return found == free and self.blocks.keys() <= beside

    def led(self) -> bool:
        """Returns whether the play goes well when both do what the expert says."""
        twin = Grid(self.config, self.pays, dict(self.blocks), dict(self.at))
        while twin.mover is not None:
            twin.play(twin.expert())
        return twin.success()

    def _towards(self, start: int) -> str:
        first, queue = {start: "stay"}, deque([start])
        while queue:
            cell = queue.popleft()
            for way in WAYS[:4]:
                then = self._then(cell, way)
                if then is None or then in first:
                    continue
                step = way if cell == start else first[cell]
                if self.blocks.get(then) == self.goal:
                    return step
                if then not in self.blocks:
                    first[then] = step
                    queue.append(then)
        return "stay"

    def _then(self, cell: int, way: str) -> int | None:
        """The cell that a move leads to; None where the grid ends."""
        row, column = divmod(cell, self.config.size)
        down, across = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}.get(way, (0, 0))
        row, column = row + down, column + across
        inside = 0 <= row < self.config.size and 0 <= column < self.config.size
        return row * self.config.size + column if inside else None
