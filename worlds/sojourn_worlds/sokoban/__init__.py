"""Sokoban: push every box onto a goal, in text or in pixels.

Ours, after the puzzle of Hiroyuki Imabayashi (1982) and its use for agents by Racanière et al. 2017 (arXiv:1707.06203),
whose levels are drawn by playing backwards too. It differs in that boxes are pulled a bounded number of times in rooms
with walls strewn about, every level is solved by a solver before it is played, a step costs nothing, and a step against
a wall is refused. Boxes cannot be pulled: a box in a corner stays there, so states can be lost for good.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.errors import ActionError
from sojourn.tasks.splits import of_task, tasks_of
from sojourn.types import Message, Role, Task
from sojourn_worlds.sokoban.levels import WAYS, Boxes, Level, Size, level_of, next_step, plan
from sojourn_worlds.sokoban.picture import picture
from sojourn_worlds.table import Table, pick

RULES = "Push every box onto a goal. Boxes cannot be pulled, and only one is pushed at a time."
SIGNS = "# wall, _ floor, . goal, $ box, * box on a goal, @ you, + you on a goal."
TILES = "Brown squares are boxes, green ones are on a goal, red diamonds are goals, the blue disc is you, dark is wall."
SAY = "Say one action: up, down, left, right."


@dataclass(frozen=True, kw_only=True)
class Sokoban:
    """Sokoban on drawn levels. The defaults take about 3 to 20 actions.

    `size` is the side of the board, outer walls included; `walls` the part of the inside that is wall; `pulls` how
    often boxes are pulled away from their goals when a level is drawn (fewer where the level would be too long).
    `turns` ends the play, lost; the expert needs at most half of them. `deadlock`: "end" ends the play, lost, when the
    box that was pushed can be seen never to reach a goal or is stuck in a square of four; "play" goes on to the last
    turn. `shaped` pays a box's share when it comes onto a goal, and takes it back when it leaves; else 1 is paid at the
    end.
    `observation`: "text", or "image" (PNG, `scale` pixels to a cell). `choices` lists the steps that are possible.

    A level belongs to one split by its own hash: no level of the test split is ever seen in training.
    """

    about: ClassVar[About] = About(
        source="ours, after Sokoban (Imabayashi 1982) and Racanière et al. 2017, arXiv:1707.06203",
        licence="Apache-2.0",
        modalities=("text", "image"),
        smallest={"size": 5, "boxes": 1, "pulls": 4, "turns": 20},
    )

    size: int = 6
    boxes: int = 1
    walls: float = 0.1
    pulls: int = 12
    turns: int = 40
    deadlock: Literal["end", "play"] = "end"
    shaped: bool = False
    observation: Literal["text", "image"] = "text"
    scale: int = 16
    choices: bool = False
    train: int = 100_000
    test: int = 1_000

    def __post_init__(self) -> None:
        limits = {
            "size": (5, 12),
            "boxes": (1, min(5, (self.size - 2) ** 2 // 6)),
            "walls": (0, 0.3),
            "pulls": (1, 1_000),
            "turns": (20 * self.boxes, 1_000),
            "scale": (4, 64),
        }
        require_within("sokoban", self, limits | SIZES)
        require_one_of("sokoban", self, {"deadlock": ("end", "play"), "observation": ("text", "image")})

    def tasks(self, split: str) -> Sequence[Task]:
        return tasks_of("sokoban", self, split)

    def make(self, task: Task) -> Table:
        own = of_task(self, task)
        size = Size(own.size, own.boxes, own.walls, own.pulls, own.turns)
        level = level_of(task.seed, task.split, size)
        return Table(Board(own, level, level.boxes, level.player), alone="agent", choices=own.choices)


@dataclass
class Board:
    config: Sokoban
    level: Level
    boxes: Boxes
    player: int
    used: int = 0
    lost: bool = False  # and everybody can see it
    blobs: dict[str, bytes] = field(default_factory=dict)

    @property
    def solved(self) -> bool:
        return self.boxes == self.level.goals

    @property
    def mover(self) -> str | None:
        over = self.solved or self.used >= self.config.turns or (self.lost and self.config.deadlock == "end")
        return None if over else "agent"

    def brief(self, seat: str) -> str:
        return f"{RULES} {SIGNS if self.config.observation == 'text' else TILES} {SAY}"

    def view(self, seat: str) -> str | Message:
        text = self.level.text(self.boxes, self.player)
        if self.config.observation == "text":
            return text
        shown = picture(text, self.config.scale)
        digest = hashlib.sha256(shown).hexdigest()
        self.blobs[digest] = shown
        return Message(Role.USER, images=(digest,))

    def choices(self) -> Sequence[str]:
        return [way for way in WAYS if not self._refusal(way)]

    def play(self, said: str) -> Mapping[str, float]:
        way = WAYS[pick(said, WAYS)]
        if refusal := self._refusal(way):
            raise ActionError(refusal)
        step = self.level.steps[way]
        before = len(self.boxes & self.level.goals)
        self.player += step
        self.used += 1
        if self.player in self.boxes:
            pushed = self.player + step
            self.boxes = self.boxes - {self.player} | {pushed}
            self.lost = self.lost or self.level.lost(self.boxes, pushed)
        if self.config.shaped:
            return {"agent": (len(self.boxes & self.level.goals) - before) / len(self.boxes)}
        return {"agent": float(self.solved)}

    def success(self) -> bool:
        return self.solved

    def info(self) -> Mapping[str, float]:
        return {"on_goals": float(len(self.boxes & self.level.goals)), "deadlock": float(self.lost)}

    def key(self) -> str:
        boxes = ",".join(map(str, sorted(self.boxes)))
        return f"{self.level.digest[:12]}/{boxes}/{self.player}/{self.config.turns - self.used}"

    def expert(self) -> str:
        """The fewest pushes; where nothing solves the level any more (or not within the solver's bounds), any step."""
        pushes = plan(self.level, self.boxes, self.player)
        if not pushes:
            return self.choices()[0]
        step = next_step(self.level, self.boxes, self.player, pushes[0])
        return next(way for way in WAYS if self.level.steps[way] == step)

    def _refusal(self, way: str) -> str:
        step = self.level.steps[way]
        then = self.player + step
        if then in self.level.walls:
            return f"There is a wall {_where(way)}."
        if then in self.boxes and (then + step in self.level.walls or then + step in self.boxes):
            return f"The box {_where(way)} cannot be pushed."
        return ""


def _where(way: str) -> str:
    return {"up": "above you", "down": "below you"}.get(way, f"to the {way} of you")
