"""ScienceWorld: experiments of a school's science class, in a house full of things, as text.

A task is a variation of an experiment. An action is a command; an observation is the simulator's text. The reward is 1
for a task that is done (with `partial`, each gain of the package's score at once) and nothing for one that is spoilt;
either ends the episode.

Simulator, tasks, splits and gold paths are those of the scienceworld package (Wang et al. 2022, arXiv:2203.07540;
Apache-2.0). It differs in the reward, in that text that the simulator does not understand is refused, and in that the
possible actions are not listed, which the package needs most of its time for.

Every episode has a Java virtual machine of its own, since simulations in one machine disturb each other; the next
episode reuses it. Its objects are made to have one hash code, without which the order of events differs from machine to
machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from sojourn.config.fields import Range
from sojourn.envs.about import About, require_module
from sojourn.envs.fields import check_fields, check_names
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks import Generated
from sojourn.tasks.splits import first_seed
from sojourn.threads import run_to_end
from sojourn.types import Message, Observation, Role, Step, Task
from sojourn_worlds.java import Lease, Pool
from sojourn_worlds.scienceworld.expert import ROOM, UNKNOWN, Trial, plan

# variations to train, develop and test, in this order, as the package splits them
# fmt: off
VARIATIONS = {
    "boil": (14, 7, 9),
    "change-the-state-of-matter-of": (14, 7, 9),
    "chemistry-mix": (16, 8, 8),
    "chemistry-mix-paint-secondary-color": (18, 9, 9),
    "chemistry-mix-paint-tertiary-color": (18, 9, 9),
    "find-animal": (150, 75, 75),
    "find-living-thing": (150, 75, 75),
    "find-non-living-thing": (150, 75, 75),
    "find-plant": (150, 75, 75),
    "freeze": (14, 7, 9),
    "grow-fruit": (62, 31, 33),
    "grow-plant": (62, 31, 33),
    "identify-life-stages-1": (6, 3, 5),
    "identify-life-stages-2": (4, 2, 4),
    "inclined-plane-determine-angle": (84, 42, 42),
    "inclined-plane-friction-named-surfaces": (692, 346, 348),
    "inclined-plane-friction-unnamed-surfaces": (80, 40, 42),
    "lifespan-longest-lived": (62, 31, 32),
    "lifespan-longest-lived-then-shortest-lived": (62, 31, 32),
    "lifespan-shortest-lived": (62, 31, 32),
    "measure-melting-point-known-substance": (218, 109, 109),
    "measure-melting-point-unknown-substance": (150, 75, 75),
    "melt": (14, 7, 9),
    "mendelian-genetics-known-plant": (60, 30, 30),
    "mendelian-genetics-unknown-plant": (240, 120, 120),
    "power-component": (10, 5, 5),
    "power-component-renewable-vs-nonrenewable-energy": (10, 5, 5),
    "test-conductivity": (450, 225, 225),
    "test-conductivity-of-unknown-substances": (300, 150, 150),
    "use-thermometer": (270, 135, 135),
}
# fmt: on
SIMPLIFICATIONS = ("teleportAction", "openDoors", "openContainers", "selfWateringFlowerPots", "noElectricalAction")
ELECTRICAL = ("power-component", "conductivity")  # parts of the names of tasks that need electrical actions
ENTRY = "scienceworld.runtime.pythonapi.PythonInterface"
OPTIONS = ("-Xmx1g", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
SYSTEM_PROMPT = (
    "{task}\nSay one action, such as: look around, inventory, look at X, open X, go to kitchen, {teleport}pick up X, "
    "focus on X, move X to Y, pour X in Y, mix X, use X on Y, activate X, connect X to Y, read X, wait, wait1. "
    "Where you are asked which of several is meant, say its number."
)


@dataclass(frozen=True, kw_only=True)
class ScienceWorld:
    """Thirty kinds of experiments (melt, grow, mix, wire, find, measure), each in many variations, in a house.

    `experiments` take turns, in the package's own variations for training and testing. `simplifications` are the
    package's. `capacity` is how many episodes there may be at once, each in a Java virtual machine of nearly a
    gigabyte.
    """

    experiments: tuple[str, ...] = tuple(VARIATIONS)
    simplifications: tuple[str, ...] = SIMPLIFICATIONS[:4]
    partial: bool = False
    turns: Annotated[int, Range(1, 1_000)] = 300
    capacity: Annotated[int, Range(1, 64)] = 2
    _machine: list[Pool] = field(default_factory=list, init=False, repr=False, compare=False)

    lowest_reward = 0.0
    about: ClassVar[About] = About(
        source="ScienceWorld (Wang et al. 2022, arXiv:2203.07540)",
        licence="Apache-2.0",
        extra="scienceworld",
        programs={"java": "default-jre-headless"},
        smallest={"experiments": ("find-living-thing",), "turns": 20},
    )

    def __post_init__(self) -> None:
        check_fields("scienceworld", self)
        check_names("scienceworld", "experiments", self.experiments, VARIATIONS)
        if self.simplifications:
            check_names("scienceworld", "simplifications", self.simplifications, SIMPLIFICATIONS)
        wired = [name for name in self.experiments if any(part in name for part in ELECTRICAL)]
        if wired and "noElectricalAction" in self.simplifications:
            raise ConfigError(f"scienceworld: {wired[0]} needs electrical actions, leave noElectricalAction out")

    def tasks(self, split: str) -> Sequence[Task]:
        first_seed("scienceworld", split)
        pairs = [(name, number) for name in self.experiments for number in variations(name, split)]
        pairs.sort(key=lambda pair: (pair[1] - variations(pair[0], split)[0], self.experiments.index(pair[0])))
        return Generated(lambda index: self._task(*pairs[index], split), len(pairs))

    def _task(self, experiment: str, variation: int, split: str) -> Task:
        data = {"experiment": experiment, "simplifications": ",".join(self.simplifications)}
        data |= {"partial": self.partial, "turns": self.turns}
        return Task("scienceworld", data, variation, split, tags=(experiment,))

    def make(self, task: Task) -> ScienceWorldPlay:
        return ScienceWorldPlay(task, self.machine)

    @property
    def machine(self) -> Pool:
        if not self._machine:
            jar = str(require_module("scienceworld.constants", "sojourn-worlds[scienceworld]", "scienceworld").JAR_PATH)
            self._machine.append(Pool("scienceworld", "scienceworld", jar, ENTRY, OPTIONS))
        return self._machine[0]

    async def open(self) -> None:
        """Keeps the machine between episodes; each call needs its `close`."""
        await self.machine.keep()

    async def close(self) -> None:
        await self.machine.let_go()


def variations(experiment: str, split: str) -> range:
    train, develop, test = VARIATIONS[experiment]
    return range(train) if split == "train" else range(train + develop, train + develop + test)


@dataclass
class ScienceWorldPlay:
    task: Task
    shared: Pool
    actions_taken: list[str] = field(default_factory=list)
    shown: str = ""
    best: float = 0.0  # score so far
    done: bool = False
    planned: list[str] = field(default_factory=list)
    hopeless: bool = False  # the expert found nothing to do
    gold: tuple[str, list[str]] | None = None  # the room where it begins, and the package's path; once it was asked for
    server: Any = None

    def __post_init__(self) -> None:
        self.lease = Lease(self.shared)

    async def start(self) -> Observation:
        await asyncio.to_thread(self._enter)
        task = " ".join(self.server.getTaskDescription().split())
        teleport = "teleport to kitchen, " if "teleportAction" in self.task.data["simplifications"] else ""
        return self._observe((Message(Role.SYSTEM, SYSTEM_PROMPT.format(task=task, teleport=teleport)),))

    def _enter(self) -> None:
        with self.lease.alone() as machine:  # of the play before, an abandoned step may be running still
            self.server = machine.new()
            self._replay(self.server, self.actions_taken)

    def _replay(self, server: Any, actions: Sequence[str], gold: bool = False) -> None:
        server.load(self.task.data["experiment"], self.task.seed, self.task.data["simplifications"], gold)
        server.reset()
        self.shown = server.step("look around")
        for action in actions:
            self.shown = server.step(action)

    async def step(self, agent: str, action: Message) -> Step:
        if self.done or self.server is None:
            raise InfrastructureError("scienceworld was given an action before its start or after its end")
        action_text = " ".join(action.text[:200].lower().split())
        if (
            not action_text or len(action.text) > 200 or not action_text.isprintable()
        ):  # half a character cannot be sent to Java
            raise ActionError("Say one short action.")
        reply, score, completed = await asyncio.to_thread(self._act, action_text)
        if reply == UNKNOWN:
            raise ActionError(f'"{action_text[:40]}" is no action that is known here.')
        self.shown = reply
        self.actions_taken.append(action_text)
        self.planned = self.planned[1:] if self.planned[:1] == [action_text] else []
        gain = max(0.0, min(1.0, score) - self.best)
        self.best += gain
        won = completed and score >= 1
        reward = gain if self.task.data["partial"] else float(won)
        self.done = completed or score < 0 or len(self.actions_taken) >= self.task.data["turns"]
        if self.done:
            return Step(None, {agent: reward}, done=True, success=won)
        return Step(self._observe(), {agent: reward})

    def _act(self, action_text: str) -> tuple[str, float, bool]:
        server = self.server
        with self.lease.alone():
            return server.step(action_text), float(server.getScore()), bool(server.getCompleted())

    async def close(self) -> None:
        self.server = None
        await run_to_end(self.lease.give_back)

    async def fork(self) -> ScienceWorldPlay:
        """Plays the same actions again."""
        planned = list(self.planned)
        twin = ScienceWorldPlay(
            self.task, self.shared, list(self.actions_taken), "", self.best, self.done, planned, self.hopeless
        )
        try:
            await asyncio.to_thread(twin._enter)
        except BaseException:
            await twin.close()
            raise
        return twin

    def state_key(self) -> str:
        """Hashes the actions: the simulator goes on by itself, so that no state occurs again."""
        return f"{self.task.id}/{hashlib.sha256(json.dumps(self.actions_taken).encode()).hexdigest()[:16]}"

    async def expert(self) -> str:
        """Returns the next action of a plan that was tried (`expert.py`); where no plan was found, a look."""
        if not self.planned and not self.hopeless:
            self.planned = await asyncio.to_thread(self._plan)
            self.hopeless = not self.planned
        return self.planned[0] if self.planned else "look around"

    def _plan(self) -> list[str]:
        """Tries plans in the episode's own simulator, and plays there again the actions taken."""
        server, data = self.server, self.task.data
        with self.lease.alone():
            if not self.gold:
                self._replay(server, (), gold=True)
                home = ROOM.search(self.shown)
                self.gold = home[1] if home else "", [action.lower() for action in server.getGoldActionSequence()]
            teleports = "teleportAction" in data["simplifications"]

            def begin() -> str:
                self._replay(server, self.actions_taken)
                return self.shown

            trial = Trial(server, begin, data["turns"] - len(self.actions_taken), teleports)
            actions = plan(trial, self.gold[1], self.actions_taken, self.gold[0], data["experiment"])
            begin()
        return actions

    def _observe(self, system: tuple[Message, ...] = ()) -> Observation:
        lines = (" ".join(line.split()) for line in self.shown.splitlines())
        return Observation((Message(Role.USER, "\n".join(filter(None, lines))),), system=system)
