"""Goal inference on a grid with coloured blocks: the leader knows which colour pays, the follower has to infer it.

A task draws the grid and the colours that pay. An action is a move; the observation is the grid as text with the other
seat's last move, and to the leader the colour that pays now. The follower's blocks are the reward of both seats:
positive for the right colour, negative for others. The episode ends when the follower has taken enough right or wrong
blocks, or after `turns` of its moves.

Ours, after ColorGrid (Risukhin et al. 2025, arXiv:2501.10593), where two agents also share a goal that only the leader
knows and that may change on the way. It differs in that the two move in turn on a small grid that is shown as text,
that blocks do not come back, and that only what the follower collects is rewarded, to both of them: so the leader's
moves matter only by what they tell.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sojourn.abilities import Bounds
from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.errors import ActionError, ConfigError
from sojourn.tasks.splits import family_of_task, make_tasks_from_fields
from sojourn.types import Task
from sojourn_worlds.turn_based import TurnBasedEnv, pick

COLOURS = ("red", "green", "blue", "yellow")
SEATS = ("leader", "follower")
MOVES = ("up", "down", "left", "right", "stay")
MAX_ATTEMPTS = 500  # draws of a grid before a config counts as impossible


@dataclass(frozen=True, kw_only=True)
class ColorGrid:
    """Goal inference on a grid of `size` by `size`, with `blocks` of each of `colours`.

    A block of the colour that pays is worth 1 / `target` when the follower walks onto it; any other costs as much. The
    episode ends when the follower has `target` blocks of the right colour, or as many wrong ones, or after `turns` of
    its moves; it is a success when there was no wrong one. With `switch` another colour begins to pay after every so
    many moves.

    `opponent`: "leader", where the world leads: it takes blocks that pay by a shortest way, leaves as many as the
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
        return make_tasks_from_fields("colorgrid", self, split)

    def bounds(self, like: Task) -> Mapping[str, Bounds]:
        return {
            "size": Bounds(3, 12),
            "colours": Bounds(2, len(COLOURS)),
            "blocks": Bounds(2, 24),
            "target": Bounds(1, 23),
        }

    def make_task(self, like: Task, data: Mapping[str, Any], seed: int) -> Task | None:
        """Returns the task where its fields go together and a grid of the seed can be solved in its turns."""
        task = Task(like.env, dict(data), seed, "train")
        try:
            self.make(task)
        except ConfigError:
            return None
        return task

    def make(self, task: Task) -> TurnBasedEnv:
        config = family_of_task(self, task)
        for attempt in range(MAX_ATTEMPTS):
            grid = draw(config, random.Random(f"colorgrid {task.seed} {attempt}"))
            if grid.is_connected() and grid.is_solvable():
                if config.opponent == "self":
                    return TurnBasedEnv(grid, choices=config.choices)
                return TurnBasedEnv(grid, {"leader": Grid.expert}, policy_seat="follower", choices=config.choices)
        raise ConfigError(
            f"colorgrid: no grid was found in which {config.target} blocks can be collected in {config.turns} turns: "
            "ask for more turns, fewer blocks, or a rarer switch"
        )


def draw(config: ColorGrid, rng: random.Random) -> Grid:
    names = COLOURS[: config.colours]
    cells = rng.sample(range(config.size**2), config.colours * config.blocks + 2)
    placed = {cell: names[number % config.colours] for number, cell in enumerate(cells[2:])}
    paying_colours = [rng.choice(names)]
    for _ in range(config.turns // config.switch if config.switch else 0):
        paying_colours.append(rng.choice([name for name in names if name != paying_colours[-1]]))
    return Grid(config, tuple(paying_colours), placed, {"leader": cells[0], "follower": cells[1]})


@dataclass
class Grid:
    """The state of one episode."""

    config: ColorGrid
    paying_colours: tuple[str, ...]  # the colour that pays, by period
    blocks: dict[int, str]  # cell -> colour
    positions: dict[str, int]  # seat -> cell
    moves_made: int = 0  # of both seats together
    right: int = 0  # blocks of the paying colour that the follower took
    wrong: int = 0
    last_event: str = ""  # a sentence on the last move, for the next observation

    @property
    def goal(self) -> str:
        return self.paying_colours[self.moves_made // 2 // self.config.switch if self.config.switch else 0]

    @property
    def current_seat(self) -> str | None:
        target = self.config.target
        if target in (self.right, self.wrong) or self.moves_made >= 2 * self.config.turns:
            return None
        return SEATS[self.moves_made % 2]

    def system_prompt(self, seat: str) -> str:
        names = COLOURS[: self.config.colours]
        signs = ", ".join(f"{name[0]} {name}" for name in names)
        knows = "You alone know which" if seat == "leader" else "Only the leader knows which: watch where it goes"
        changes = ", and it may change" if self.config.switch else ""
        return (
            f"A grid with blocks of {len(names)} colours: {signs}. L is the leader, F the follower, X both "
            "in one cell. Who walks onto a block takes it. Blocks of one colour pay, the others cost. "
            f"{knows}{changes}. "
            f"What the follower takes counts for both; it should get {self.config.target} that pay. "
            f"You are the {seat}. Say one move: {', '.join(MOVES)}."
        )

    def observe(self, seat: str) -> str:
        size = self.config.size
        cells = [self.blocks.get(cell, ".")[0] for cell in range(size * size)]
        for name, cell in self.positions.items():
            cells[cell] = "X" if cells[cell] in "LF" else name[0].upper()
        lines = ["".join(cells[row : row + size]) for row in range(0, size * size, size)]
        events = [self.last_event] if self.last_event else []
        if seat == "leader":
            events.append(f"Now {self.goal} pays.")
        return "\n".join([*lines, " ".join(events)] if events else lines)

    def choices(self) -> Sequence[str]:
        assert self.current_seat is not None
        return [move for move in MOVES if self._cell_after(self.positions[self.current_seat], move) is not None]

    def act(self, action: str) -> Mapping[str, float]:
        move = MOVES[pick(action, MOVES)]
        seat = self.current_seat
        assert seat is not None
        target_cell = self._cell_after(self.positions[seat], move)
        if target_cell is None:
            raise ActionError(f"You cannot go {move}: the grid ends there.")
        goal = self.goal
        taken = self.blocks.pop(target_cell, "")
        self.positions[seat] = target_cell
        self.moves_made += 1
        went = "stayed" if move == "stay" else f"went {move}"
        self.last_event = f"The {seat} {went}{f' and took a {taken} block' if taken else ''}."
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

    def state_key(self) -> str:
        blocks = "".join(f"{cell}{colour[0]}" for cell, colour in sorted(self.blocks.items()))
        return f"colorgrid/{blocks}/{self.positions}/{self.moves_made}/{self.right}/{self.wrong}/{self.goal}"

    def expert(self) -> str:
        """Returns a step to the nearest block that pays, avoiding others; the leader leaves what the follower needs."""
        left = sum(colour == self.goal for colour in self.blocks.values())
        if self.current_seat == "leader" and left <= self.config.target - self.right:
            return "stay"
        assert self.current_seat is not None
        return self._towards(self.positions[self.current_seat])

    def is_connected(self) -> bool:
        """Returns whether every block can be reached from every free cell without walking over another block."""
        size = self.config.size
        free = {cell for cell in range(size * size) if cell not in self.blocks}
        reached, queue = {min(free)}, deque([min(free)])
        while queue:
            cell = queue.popleft()
            for move in MOVES[:4]:
                target_cell = self._cell_after(cell, move)
                if target_cell in free and target_cell not in reached:
                    reached.add(target_cell)
                    queue.append(target_cell)
        beside = {self._cell_after(cell, move) for cell in reached for move in MOVES}
        return reached == free and self.blocks.keys() <= beside

    def is_solvable(self) -> bool:
        """Returns whether the episode succeeds when both seats follow the expert."""
        twin = Grid(self.config, self.paying_colours, dict(self.blocks), dict(self.positions))
        while twin.current_seat is not None:
            twin.act(twin.expert())
        return twin.success()

    def _towards(self, start: int) -> str:
        first, queue = {start: "stay"}, deque([start])
        while queue:
            cell = queue.popleft()
            for move in MOVES[:4]:
                target_cell = self._cell_after(cell, move)
                if target_cell is None or target_cell in first:
                    continue
                step = move if cell == start else first[cell]
                if self.blocks.get(target_cell) == self.goal:
                    return step
                if target_cell not in self.blocks:
                    first[target_cell] = step
                    queue.append(target_cell)
        return "stay"

    def _cell_after(self, cell: int, move: str) -> int | None:
        """Returns the cell that a move leads to, None where the grid ends."""
        row, column = divmod(cell, self.config.size)
        down, across = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}.get(move, (0, 0))
        row, column = row + down, column + across
        inside = 0 <= row < self.config.size and 0 <= column < self.config.size
        return row * self.config.size + column if inside else None
