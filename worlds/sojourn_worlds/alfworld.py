"""ALFWorld: chores in a household, as text.

A task is a chore in a household. An action is one of the commands that the game admits; an observation is its text. The
reward is 1 when the chore is done, which ends the episode, as does the last of `turns` actions, with reward 0.

Rules, floor plans, goals and texts are those of the alfworld package (Shridhar et al. 2021, arXiv:2010.03768; MIT),
which plays through textworld (with jericho, GPL-2.0-or-later) and a planner's library (Fast Downward,
GPL-3.0-or-later): they come in by this world's extra alone, and run in processes of their own. Where its games have not
been downloaded, games are made here from what the package has: things lie elsewhere than in the official ones, and
furniture whose place the floor plans do not tell stands somewhere. It differs in that only the commands that the game
calls admissible are possible, the banner is left out, and the task is in the system messages.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.fields import Count, check_fields, check_names
from sojourn.errors import ActionError, ConfigError, InfrastructureError, MissingExtraError
from sojourn.tasks import Generated
from sojourn.tasks.splits import FIRST_TEST, make_tasks
from sojourn.types import Message, Observation, Role, Step, Task
from sojourn_worlds.adapters.child import Child, Interpreter

KINDS = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
FOLDERS = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}  # of the official games
NOT_PLAYED = ("movable", "Sliced")  # kinds that the package has files of, and no rules
TIMEOUT_S = 120.0
PLAYS = itertools.count()
SYSTEM_PROMPT = (
    "Your task is to: {task}\nSay one command, such as: look, inventory, go to fridge 1, open fridge 1, "
    "take apple 1 from fridge 1, heat apple 1 with microwave 1, move apple 1 to countertop 1, use desklamp 1, help."
)


@dataclass(frozen=True, kw_only=True)
class ALFWorld:
    """Chores in a household: find things, clean, heat or cool them, put them where they belong.

    The `kinds` of chores take turns. Testing is in `rooms` that training never sees, or in seen ones with other
    contents. A room has at most `alike` pieces of each sort of furniture, and up to `copies` of a thing. `data` is the
    folder of the official games ("$ALFWORLD_DATA/json_2.1.1"); they are played as they are, and their number is theirs.

    Games that are made (in seconds, a hundred kilobytes) are kept in `cache`, or without it in the user's own cache.
    `python` is an interpreter that has the package, if ours does not. Every episode holds a process of a hundred
    megabytes, which the next one reuses; `capacity` bounds how many there are at once.
    """

    kinds: tuple[str, ...] = KINDS
    rooms: Literal["unseen", "seen"] = "unseen"
    alike: Annotated[int, Range(1, 30)] = 30
    copies: Annotated[int, Range(1, 5)] = 2
    turns: Annotated[int, Range(1, 1_000)] = 50
    choices: bool = False
    data: str | None = None
    cache: str | None = None
    python: str = ""
    capacity: Annotated[int, Range(1, 256)] = 4
    train: Count = 100_000
    test: Count = 1_000
    _players: Players = field(default_factory=lambda: Players(), init=False, repr=False, compare=False)

    lowest_reward = 0.0
    about: ClassVar[About] = About(
        source="ALFWorld (Shridhar et al. 2021, arXiv:2010.03768), games made here, or the official ones",
        licence="MIT AND GPL-2.0-or-later AND GPL-3.0-or-later",
        extra="alfworld",
        smallest={"kinds": KINDS[:1], "alike": 1, "copies": 1, "turns": 20, "capacity": 2},
    )

    def __post_init__(self) -> None:
        check_fields("alfworld", self)
        check_names("alfworld", "kinds", self.kinds, KINDS)
        if self.data is not None and not (self.official / "train").is_dir():
            raise ConfigError(
                f'alfworld: data = "{self.data}" has no folder "train": name the folder json_2.1.1 that '
                "alfworld-download has made, or leave data out"
            )

    @property
    def official(self) -> Path:
        return Path(os.path.expandvars(self.data or "")).expanduser()

    @property
    def folder(self) -> Path:
        return Path(self.cache) if self.cache else _cache_folder()

    @cached_property
    def interpreter(self) -> Interpreter:
        if not self.python and importlib.util.find_spec("alfworld") is None:
            raise MissingExtraError("alfworld needs the package 'alfworld': pip install 'sojourn-worlds[alfworld]'")
        surroundings = {"ALFWORLD_DATA": str(self.folder.absolute())}  # else the package makes a folder in the home
        return Interpreter("alfworld", self.python or sys.executable, "alfworld", environment=surroundings)

    def tasks(self, split: str) -> Sequence[Task]:
        made = make_tasks("alfworld", self, split, lambda seed: self._made(seed, split))
        if self.data is None:
            return made
        games = official_games(self.official / FOLDERS["train" if split == "train" else self.rooms], self.kinds)
        return Generated(lambda index: self._official(games[index], split), len(games))

    def _made(self, seed: int, split: str) -> Task:
        kind = self.kinds[seed % FIRST_TEST % len(self.kinds)]
        unseen = split == "test" and self.rooms == "unseen"
        data = {"kind": kind, "unseen": unseen, "alike": self.alike, "copies": self.copies, "turns": self.turns}
        return Task("alfworld", data, seed, split, tags=(kind,))

    def _official(self, game: Path, split: str) -> Task:
        data = {"game": game.relative_to(self.official).as_posix(), "turns": self.turns}
        return Task("alfworld", data, 0, split, tags=(_kind(game),))

    def make(self, task: Task) -> ALFWorldPlay:
        assert self.interpreter  # says at once what is missing
        return ALFWorldPlay(self, task)

    async def open(self) -> None:
        """Keeps the processes between episodes; each call needs its `close`."""
        self._players.holders += 1

    async def close(self) -> None:
        await self._players.let_go()


def official_games(folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Returns the games of these kinds that can be won, in an order that mixes the kinds."""
    game_files = [file for file in folder.rglob("game.tw-pddl") if _kind(file) in kinds and not _left_out(file)]
    games = [file for file in game_files if json.loads(file.read_text("utf-8")).get("solvable")]
    if not games:
        raise ConfigError(f"alfworld: {folder} has no game of the kinds {', '.join(kinds)}: run alfworld-download")
    return sorted(games, key=lambda file: hashlib.sha256(file.relative_to(folder).as_posix().encode()).digest())


def _kind(game: Path) -> str:
    return game.parent.parent.name.partition("-")[0]


def _left_out(game: Path) -> bool:
    return any(part in name for part in NOT_PLAYED for name in game.parts[-3:])


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sojourn" / "alfworld"


@dataclass(eq=False)
class Players:
    """Processes that play one game at a time and are reused; all end when nobody holds or keeps any."""

    idle: list[Child] = field(default_factory=list)
    holders: int = 0

    def hold(self, interpreter: Interpreter) -> Child:
        """Returns a process that runs already, or one that is to be opened."""
        self.holders += 1
        while self.idle:
            if (child := self.idle.pop()).alive:
                return child
        return Child(interpreter)

    async def let_go(self, child: Child | None = None) -> None:
        self.holders -= 1
        ending = [] if child is None else [child]
        if self.holders == 0:
            ending, self.idle = [*ending, *self.idle], []
        for ended in ending:
            await ended.close()

    async def give_back(self, child: Child) -> None:
        self.idle.append(child)
        await self.let_go()


@dataclass
class ALFWorldPlay:
    world: ALFWorld
    task: Task
    actions_taken: list[str] = field(default_factory=list)
    done: bool = False
    child: Child | None = None
    number: int = 0  # of the play in its process
    sound: bool = True  # no request to the process has failed or been given up
    seen: dict[str, Any] = field(default_factory=dict)

    async def start(self) -> Observation:
        await self._enter()
        scene, _, task = self.seen["opening"].partition("Your task is to:")
        system = Message(Role.SYSTEM, SYSTEM_PROMPT.format(task=_plain(task)))
        return self._observe("\n".join(line for line in scene.splitlines() if not line.startswith("-=")), (system,))

    async def _enter(self) -> None:
        self.child = self.world._players.hold(self.world.interpreter)
        self.sound = False
        if not self.child.alive:
            await self.child.open(TIMEOUT_S)
        self.number = next(PLAYS)
        data = self.task.data
        official = str(self.world.official / data["game"]) if "game" in data else ""
        recipe = {key: value for key, value in data.items() if key != "turns"} | {"seed": self.task.seed}
        folder = str(self.world.folder.absolute())
        self.seen = await self._ask("start", game=official, recipe=recipe, folder=folder, said=self.actions_taken)

    async def _ask(self, do: str, **arguments: Any) -> Any:
        if self.child is None:
            raise InfrastructureError("alfworld was asked before its start or after its end")
        self.sound = False
        result = await self.child.ask(self.number, do, TIMEOUT_S, **arguments)
        self.sound = True
        return result

    async def step(self, agent: str, action: Message) -> Step:
        if self.done or self.child is None:
            raise InfrastructureError("alfworld was given an action before its start or after its end")
        command = " ".join(action.text[:200].lower().split())
        if len(action.text) > 200 or command not in self.seen["commands"]:
            raise ActionError(f'"{command[:40]}" is not possible here.')
        self.seen = await self._ask("step", command=command)
        self.actions_taken.append(command)
        won = bool(self.seen["won"])
        self.done = won or len(self.actions_taken) >= self.task.data["turns"]
        if self.done:
            return Step(None, {agent: float(won)}, done=True, success=won)
        return Step(self._observe(self.seen["text"]), {agent: 0.0})

    async def close(self) -> None:
        child, self.child = self.child, None
        if child is None:
            return
        fit, self.sound = self.sound and child.alive, False
        try:
            if fit:
                await child.ask(self.number, "close", TIMEOUT_S)
                self.sound = True
        finally:
            await (self.world._players.give_back(child) if self.sound else self.world._players.let_go(child))

    async def fork(self) -> ALFWorldPlay:
        """Plays the same commands again in another process."""
        twin = ALFWorldPlay(self.world, self.task, list(self.actions_taken), self.done)
        try:
            await twin._enter()
        finally:
            if not twin.sound:
                await twin.close()
        return twin

    def state_key(self) -> str:
        return f"{self.task.id}/{self.seen.get('key', '')}"

    async def expert(self) -> str:
        """Returns the next command of a player who knows where everything is, from any state of the episode."""
        return await self._ask("plan")

    def _observe(self, text: str, system: tuple[Message, ...] = ()) -> Observation:
        choices = tuple(self.seen["commands"]) if self.world.choices else ()
        return Observation((Message(Role.USER, _plain(text)),), system=system, choices=choices)


def _plain(text: str) -> str:
    """Returns a text without empty lines and surrounding spaces."""
    return "\n".join(filter(None, (" ".join(line.split()) for line in text.splitlines())))
