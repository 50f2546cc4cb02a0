"""TextWorld: quests in generated houses, as interactive fiction that is compiled and played here.

A task is a generated game. An action is one of the commands that the game admits; an observation is its text. The
reward is 1 when all quests are done, which ends the episode, as does the last of `turns` actions; with `partial` each
quest pays its share.

Generator, compiler and interpreter are those of the textworld package (Côté et al. 2018, arXiv:1806.11532; MIT), which
plays through jericho (GPL-2.0-or-later): it comes in by this world's extra alone. It differs in that only the commands
that TextWorld calls admissible are possible, written out in full, and the banner of the games is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from sojourn.config.fields import Range
from sojourn.envs.about import About, require_module
from sojourn.envs.fields import Count, check_fields
from sojourn.errors import ActionError, InfrastructureError
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Message, Observation, Role, Step, Task

GENERATOR = threading.Lock()  # the package's grammars and parsers are shared, and not made for threads
OLD_S = 3_600
SYSTEM_PROMPT = "{objective}\nSay one command, such as: look, inventory, go north, take key, open chest."
PROMPT = re.compile(r"\n>[^\n]*(\n.*)?$", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class TextWorld:
    """Quests in a generated house: find, open, take and put what is asked for, told in prose.

    Every task is a game of its own, with so many `rooms` and `objects`, whose `quests` take `quest_length` commands
    each. `instructions` tell every step of a quest ("all"), or its last one. With `partial`, every quest that is done
    pays its share at once. A game is compiled once (in seconds, to half a megabyte), into `cache`, or without it into
    the user's own cache.
    """

    rooms: Annotated[int, Range(1, 30)] = 4
    objects: Annotated[int, Range(1, 60)] = 6
    quest_length: Annotated[int, Range(1, 20)] = 3
    quests: Annotated[int, Range(1, 5)] = 1
    instructions: Literal["all", "last"] = "all"
    partial: bool = False
    turns: Annotated[int, Range(1, 1_000)] = 40
    choices: bool = False
    cache: str | None = None
    train: Count = 100_000
    test: Count = 1_000

    lowest_reward = 0.0
    about: ClassVar[About] = About(
        source="TextWorld (Côté et al. 2018, arXiv:1806.11532), games generated and compiled here",
        licence="MIT AND GPL-2.0-or-later",
        extra="textworld",
        smallest={"rooms": 1, "objects": 2, "quest_length": 1, "turns": 10},
    )

    def __post_init__(self) -> None:
        check_fields("textworld", self)

    def tasks(self, split: str) -> Sequence[Task]:
        names = ("rooms", "objects", "quest_length", "quests", "instructions", "partial", "turns")
        data = {name: getattr(self, name) for name in names}
        return make_tasks_from_data("textworld", self, split, data)

    def make(self, task: Task) -> TextWorldPlay:
        folder = Path(self.cache) if self.cache else _cache_folder()
        return TextWorldPlay(Game(dict(task.data), task.seed, folder), task.id, self.choices)


def _sweep(folder: Path) -> None:
    """Removes what killed processes left unfinished."""
    for draft in folder.glob("draft-*"):
        with contextlib.suppress(OSError):
            if time.time() - draft.stat().st_mtime > OLD_S:
                shutil.rmtree(draft, ignore_errors=True)


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sojourn" / "textworld"


@dataclass(frozen=True)
class Game:
    """The place of a task's compiled game, whether it exists or not."""

    data: Mapping[str, Any]
    seed: int
    folder: Path

    def file(self) -> Path:
        """Returns the compiled game, made now if it does not exist; several processes may want it at once."""
        package = require_module("textworld", "sojourn-worlds[textworld]", "textworld")
        shape = {name: value for name, value in self.data.items() if name not in ("partial", "turns")}
        key = f"{package.__version__} {sorted(shape.items())} {self.seed}"
        home = self.folder / hashlib.sha256(key.encode()).hexdigest()[:24]
        if not (home / "game.z8").is_file():
            self._make(home)
        return home / "game.z8"

    def _make(self, home: Path) -> None:
        generator = require_module("textworld.generator", "sojourn-worlds[textworld]", "textworld")
        inform = require_module("textworld.generator.inform7", "sojourn-worlds[textworld]", "textworld")
        self.folder.mkdir(parents=True, exist_ok=True)
        _sweep(self.folder)
        draft = Path(tempfile.mkdtemp(prefix="draft-", dir=self.folder))
        try:
            with GENERATOR:
                game = generator.make_game(self._options())
                source = inform.generate_inform7_source(game)
                game.save(str(draft / "game.json"))
            inform.compile_inform7_game(source, str(draft / "game.z8"))
            try:
                draft.rename(home)
            except OSError:
                if not (home / "game.z8").is_file():  # another process was not faster: the folder cannot be written
                    raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _options(self) -> Any:
        options = require_module("textworld", "sojourn-worlds[textworld]", "textworld").GameOptions()
        options.nb_rooms, options.nb_objects = self.data["rooms"], self.data["objects"]
        options.nb_parallel_quests, options.quest_length = self.data["quests"], self.data["quest_length"]
        options.grammar.only_last_action = self.data["instructions"] == "last"
        options.seeds = self.seed
        return options

    def enter(self, **infos: bool) -> tuple[Any, Any]:
        """Returns the package's environment, and its first state."""
        package = require_module("textworld", "sojourn-worlds[textworld]", "textworld")
        unknown = require_module("jericho.jericho", "sojourn-worlds[textworld]", "textworld").UnsupportedGameWarning
        warnings.filterwarnings("ignore", category=unknown)  # of every game but the classics
        file = self.file()
        with GENERATOR:
            world = package.start(str(file), package.EnvInfos(**infos))
            return world, world.reset()


@dataclass
class TextWorldPlay:
    game: Game
    key: str
    choices: bool = False
    actions_taken: list[str] = field(default_factory=list)
    paid: float = 0.0
    done: bool = False
    world: Any = None
    state: Any = None
    guide: Any = None  # a second play of the same commands that knows the way; made when the expert is first asked
    advice: Sequence[str] = ()

    async def start(self) -> Observation:
        self.world, self.state = await asyncio.to_thread(self.game.enter, **_INFOS)
        system = SYSTEM_PROMPT.format(objective=_plain(self.state.objective))
        opening = self.state.feedback.rpartition(self.state.objective)[2]
        return self._observe(opening, (Message(Role.SYSTEM, system),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done or self.world is None:
            raise InfrastructureError("textworld was given an action before its start or after its end")
        command = " ".join(action.text[:200].lower().split())
        possible = {known.lower(): known for known in self.state.admissible_commands}
        if len(action.text) > 200 or command not in possible:
            raise ActionError(f'"{command[:40]}" is not possible here.')
        command = possible[command]
        self.state, _, done = self.world.step(command)
        self.actions_taken.append(command)
        if self.guide is not None:
            self.advice = self.guide.step(command)[0].policy_commands
        won = bool(self.state.won)
        reward = self._pending_reward(won)
        self.paid += reward
        self.done = bool(done) or len(self.actions_taken) >= self.game.data["turns"]
        if self.done:
            return Step(None, {agent: reward}, done=True, success=won)
        return Step(self._observe(self.state.feedback), {agent: reward})

    def _pending_reward(self, won: bool) -> float:
        if won:
            return 1.0 - self.paid
        if not self.game.data["partial"]:
            return 0.0
        return max(0.0, self.state.score / max(self.state.max_score, 1) - self.paid)

    async def close(self) -> None:
        for world in (self.world, self.guide):
            if world is not None:
                world.close()
        self.world = self.guide = None

    async def fork(self) -> TextWorldPlay:
        """Plays the same commands again in another interpreter."""
        twin = TextWorldPlay(self.game, self.key, self.choices, list(self.actions_taken), self.paid, self.done)
        twin.world, twin.state = await asyncio.to_thread(self.game.enter, **_INFOS)
        for command in self.actions_taken:
            twin.state, _, _ = twin.world.step(command)
        return twin

    def state_key(self) -> str:
        facts = sorted(map(str, self.state["_facts"])) if self.state is not None else []
        return f"{self.key}/{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"

    async def expert(self) -> str:
        """Returns the next command of TextWorld's own plan; where nothing can be won any more, "look"."""
        if self.guide is None:
            self.guide, state = await asyncio.to_thread(self.game.enter, policy_commands=True)
            for command in self.actions_taken:
                state, _, _ = self.guide.step(command)
            self.advice = state.policy_commands
        return self.advice[0] if self.advice else "look"

    def _observe(self, text: str, system: tuple[Message, ...] = ()) -> Observation:
        choices = tuple(self.state.admissible_commands) if self.choices else ()
        return Observation((Message(Role.USER, _plain(text)),), system=system, choices=choices)


_INFOS = dict.fromkeys(("admissible_commands", "objective", "won", "lost", "score", "max_score"), True)


def _plain(text: str) -> str:
    """Returns a text without prompt, status line and empty lines."""
    lines = (" ".join(line.split()) for line in PROMPT.sub("", text).splitlines())
    return "\n".join(line for line in lines if line)
