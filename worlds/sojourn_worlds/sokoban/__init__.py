"""Sokoban: the agent pushes every box onto a goal; the board is shown as text or as an image.

A task is a level drawn from its seed. An action is one of four moves; the observation is the board. The reward is 1
when all boxes stand on goals (with `shaped` it is paid box by box), and the episode ends then, after `turns` moves, or
at a deadlock that can be seen.

Ours, after the puzzle of Hiroyuki Imabayashi (1982) and its use for agents by Racanière et al. 2017 (arXiv:1707.06203),
whose levels are also drawn by reverse play. It differs in that boxes are pulled a bounded number of times in rooms with
walls strewn about, every level is solved by a solver before it is played, a move costs nothing, and a move against a
wall is refused. Boxes cannot be pulled in play: a box in a corner stays there, so states can be lost for good.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sojourn.abilities import Bounds
from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.errors import ActionError, ConfigError
from sojourn.tasks.splits import family_of_task, make_tasks_from_fields
from sojourn.types import Message, Role, Task
from sojourn_worlds.sokoban.levels import (
    MAX_ATTEMPTS_WHEN_MADE,
    MOVES,
    Boxes,
    Level,
    Size,
    level_of,
    next_step,
    plan,
)
from sojourn_worlds.sokoban.picture import picture
from sojourn_worlds.turn_based import TurnBasedEnv, pick

RULES = "Push every box onto a goal. Boxes cannot be pulled, and only one is pushed at a time."
SIGNS = "# wall, _ floor, . goal, $ box, * box on a goal, @ you, + you on a goal."
TILES = "Brown squares are boxes, green ones are on a goal, red diamonds are goals, the blue disc is you, dark is wall."
SAY = "Say one action: up, down, left, right."


@dataclass(frozen=True, kw_only=True)
class Sokoban:
    """Sokoban on drawn levels; with the defaults a level takes about 3 to 20 actions.

    `size` is the side of the board, outer walls included; `walls` the fraction of the inside that is wall; `pulls` how
    often boxes are pulled away from their goals when a level is drawn (fewer where the level would be too long).
    `turns` ends the episode without success; the expert needs at most half of them. `deadlock`: "end" ends the episode
    without success when the box that was just pushed can be seen never to reach a goal or is stuck in a square of four;
    "play" goes on to the last turn. `shaped` pays a box's fraction of the reward when it comes onto a goal, and takes
    it back when the box leaves; otherwise 1 is paid at the end. `observation`: "text", or "image" (PNG, `scale` pixels
    to a cell). `choices` lists the moves that are possible.

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
        return make_tasks_from_fields("sokoban", self, split)

    def bounds(self, like: Task) -> Mapping[str, Bounds]:
        return {"size": Bounds(5, 12), "boxes": Bounds(1, 5), "walls": Bounds(0, 0.3, 0.05), "pulls": Bounds(1, 100, 2)}

    def make_task(self, like: Task, data: Mapping[str, Any], seed: int) -> Task | None:
        """Returns the task where one of the first `MAX_ATTEMPTS_WHEN_MADE` levels of the seed is solved in time."""
        task = Task(like.env, dict(data), seed, "train")
        try:
            level_of(seed, "train", family_of_task(self, task).drawn_as, MAX_ATTEMPTS_WHEN_MADE)
        except ConfigError:
            return None
        return task

    @property
    def drawn_as(self) -> Size:
        return Size(self.size, self.boxes, self.walls, self.pulls, self.turns)

    def make(self, task: Task) -> TurnBasedEnv:
        config = family_of_task(self, task)
        level = level_of(task.seed, task.split, config.drawn_as)
        return TurnBasedEnv(
            Board(config, level, level.boxes, level.player), policy_seat="agent", choices=config.choices
        )


@dataclass
class Board:
    """The state of one episode."""

    config: Sokoban
    level: Level
    boxes: Boxes
    player: int
    turns_taken: int = 0
    lost: bool = False  # a deadlock that can be seen on the board
    blobs: dict[str, bytes] = field(default_factory=dict)

    @property
    def solved(self) -> bool:
        return self.boxes == self.level.goals

    @property
    def current_seat(self) -> str | None:
        done = self.solved or self.turns_taken >= self.config.turns or (self.lost and self.config.deadlock == "end")
        return None if done else "agent"

    def system_prompt(self, seat: str) -> str:
        return f"{RULES} {SIGNS if self.config.observation == 'text' else TILES} {SAY}"

    def observe(self, seat: str) -> str | Message:
        text = self.level.text(self.boxes, self.player)
        if self.config.observation == "text":
            return text
        image = picture(text, self.config.scale)
        digest = hashlib.sha256(image).hexdigest()
        self.blobs[digest] = image
        return Message(Role.USER, images=(digest,))

    def choices(self) -> Sequence[str]:
        return [move for move in MOVES if not self._refusal(move)]

    def act(self, action: str) -> Mapping[str, float]:
        move = MOVES[pick(action, MOVES)]
        if refusal := self._refusal(move):
            raise ActionError(refusal)
        step = self.level.steps[move]
        before = len(self.boxes & self.level.goals)
        self.player += step
        self.turns_taken += 1
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

    def state_key(self) -> str:
        boxes = ",".join(map(str, sorted(self.boxes)))
        return f"{self.level.digest[:12]}/{boxes}/{self.player}/{self.config.turns - self.turns_taken}"

    def expert(self) -> str:
        """Returns a move towards the next push of a shortest plan.

        Where nothing solves the level any more (or not within the solver's bounds), it returns any possible move.
        """
        pushes = plan(self.level, self.boxes, self.player)
        if not pushes:
            return self.choices()[0]
        step = next_step(self.level, self.boxes, self.player, pushes[0])
        return next(move for move in MOVES if self.level.steps[move] == step)

    def _refusal(self, move: str) -> str:
        step = self.level.steps[move]
        then = self.player + step
        if then in self.level.walls:
            return f"There is a wall {_where(move)}."
        if then in self.boxes and (then + step in self.level.walls or then + step in self.boxes):
            return f"The box {_where(move)} cannot be pushed."
        return ""


def _where(move: str) -> str:
    return {"up": "above you", "down": "below you"}.get(move, f"to the {move} of you")
