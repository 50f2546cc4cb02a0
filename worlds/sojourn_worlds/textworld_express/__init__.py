"""TextWorldExpress: eight kinds of text games, generated and played in a Java virtual machine, thousands of steps per
second.

A task is a generated game. An action is one of the package's valid actions; an observation is its text. The reward is 1
for a game that is won (with `partial`, each gain of the package's score at once); the episode ends when the game is won
or lost, or after its turns.

Games, generators and gold paths are those of the textworld-express package (Jansen & Côté 2023, EACL demo,
arXiv:2208.01174; Apache-2.0). It differs in that only the actions that the package lists as valid are possible, in the
reward, and in that the expert goes on from states that are not on the gold path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from sojourn.config.fields import Range
from sojourn.envs.about import About, require_module
from sojourn.envs.fields import check_fields, check_names
from sojourn.tasks import Generated
from sojourn.tasks.splits import first_seed
from sojourn.types import Task
from sojourn_worlds.java import Shared
from sojourn_worlds.textworld_express.play import ExpressPlay, Game

GAMES = ("cookingworld", "twc", "coin", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder")
FIRST_SEED = {"train": 0, "test": 20_000}  # the package's own folds, a thousand seeds each
SEEDS = 1_000
ENTRY = "textworldexpress.runtime.PythonInterface"


@dataclass(frozen=True, kw_only=True)
class TextWorldExpress:
    """Eight kinds of text games: cooking, tidying up, finding coins, reading maps, counting, sorting, doing as told.

    `games` take turns, with the package's own seeds for training and testing; their content differs too where the
    package says so. `params` are the package's parameters, such as "numLocations=3,includeDoors=0", for all games. All
    episodes of a process share one Java virtual machine, which ends with the last of them, or with the family's
    `close`.
    """

    games: tuple[str, ...] = GAMES
    params: str = ""
    partial: bool = False
    turns: Annotated[int, Range(1, 1_000)] = 150
    choices: bool = False
    _machine: list[Shared] = field(default_factory=list, init=False, repr=False, compare=False)

    lowest_reward = 0.0
    about: ClassVar[About] = About(
        source="TextWorldExpress (Jansen & Côté 2023, arXiv:2208.01174)",
        licence="Apache-2.0",
        extra="textworld_express",
        programs={"java": "default-jre-headless"},
        smallest={"games": ("coin",), "params": "numLocations=2,numDistractorItems=0,includeDoors=0", "turns": 15},
    )

    def __post_init__(self) -> None:
        check_fields("textworld_express", self)
        check_names("textworld_express", "games", self.games, GAMES)

    def tasks(self, split: str) -> Sequence[Task]:
        first_seed("textworld_express", split)
        return Generated(lambda index: self._task(index, split), len(self.games) * SEEDS)

    def _task(self, index: int, split: str) -> Task:
        number, which = divmod(index, len(self.games))
        game = self.games[which]
        data = {"game": game, "params": self.params, "partial": self.partial, "turns": self.turns}
        return Task("textworld_express", data, FIRST_SEED[split] + number, split, tags=(game,))

    def make(self, task: Task) -> ExpressPlay:
        data = task.data
        game = Game(data["game"], data["params"], task.seed, task.split, data["partial"], data["turns"])
        return ExpressPlay(game, self.machine, task.id, self.choices)

    @property
    def machine(self) -> Shared:
        if not self._machine:
            constants = require_module(
                "textworld_express.constants", "sojourn-worlds[textworld_express]", "textworld_express"
            )
            jar = str(constants.JAR_PATH)
            self._machine.append(Shared("textworld_express", "textworld_express", jar, ENTRY, ("-Xmx512m",)))
        return self._machine[0]

    async def open(self) -> None:
        """Keeps the machine between episodes; each call needs its `close`."""
        await self.machine.keep()

    async def close(self) -> None:
        await self.machine.let_go()
