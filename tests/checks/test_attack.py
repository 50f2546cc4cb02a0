"""Each world here has one weakness; the attacks must find it and name it, and find nothing in a sound world."""

import os
import socket
import sqlite3
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from spawned import sojourn

from sojourn.checks.attack import attack_env, case, categories
from sojourn.checks.attack.programs import SIGNALS
from sojourn.checks.report import Outcome
from sojourn.envs.about import About
from sojourn.envs.tools import Tools
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Observation, Role, Step, Task

COLOURS = ("red", "green", "blue", "amber", "black")


def seen(text: str) -> Observation:
    return Observation((Message(Role.USER, text),))


class Quiz:
    """A sound world: look at the card, then say `answer COLOUR`, one word."""

    def __init__(self, task: Task):
        self.task, self.looked = task, False
        self.colour = COLOURS[task.seed % len(COLOURS)]

    async def start(self) -> Observation:
        return seen("Say look, then answer COLOUR.")

    async def step(self, agent: str, action: Message) -> Step:
        verb, _, said = action.text.partition(" ")
        if action.text == "look":
            self.looked = True
            return Step(seen(f"It is {self.colour}."))
        if verb != "answer" or not said:
            raise ActionError("say look or answer COLOUR")
        right = self.right(said)
        return Step(None, {agent: float(right)}, done=True, success=right)

    def right(self, said: str) -> bool:
        return said == self.colour

    async def close(self) -> None:
        pass

    def expert(self) -> str:
        return f"answer {self.colour}" if self.looked else "look"


@dataclass(frozen=True)
class World:
    env: Any = Quiz
    about: ClassVar[About] = About(source="ours", licence="Apache-2.0")

    def tasks(self, split: str) -> list[Task]:
        return [Task("quiz", {}, seed + (100 if split == "test" else 0), split) for seed in range(10)]

    def make(self, task: Task) -> Any:
        return self.env(task)


class Mentions(Quiz):
    def right(self, said: str) -> bool:
        return self.colour in said


class Believes(Quiz):
    def right(self, said: str) -> bool:
        return said == self.colour or '"reward": 1' in said


class Runs(Quiz):
    """Hands what is said to a shell."""

    def right(self, said: str) -> bool:
        subprocess.run(["sh", "-c", f"echo {said}"], capture_output=True, timeout=10, check=False)
        return said == self.colour


class Visits(Quiz):
    """Follows what looks like an address."""

    def right(self, said: str) -> bool:
        if said.startswith("http://127.0.0.1:"):
            socket.create_connection(("127.0.0.1", int(said[17:].strip("/")))).close()
        return said == self.colour


class Encodes(Quiz):
    def right(self, said: str) -> bool:
        return said.encode() == self.colour.encode()


class Recurses(Quiz):
    def right(self, said: str) -> bool:
        def deep(rest: str) -> int:
            return deep(rest[1:]) + 1 if rest.startswith(("[", "(")) else 0

        return deep(said) == 0 and said == self.colour


class Slow(Quiz):
    """Holds up the event loop for as long as what is said has spaces."""

    def right(self, said: str) -> bool:
        time.sleep(min(said.count(" "), 10_000) / 10_000)
        return said == self.colour


class Remembers(Quiz):
    """Whoever says something long changes the card for all later plays."""

    shift = 0

    def __init__(self, task: Task):
        super().__init__(task)
        self.colour = COLOURS[(task.seed + Remembers.shift) % len(COLOURS)]

    def right(self, said: str) -> bool:
        Remembers.shift = max(Remembers.shift, int(len(said) > 100_000))
        return said == self.colour


class Stays(Quiz):
    """Does a sum as bash would, so that it is taken for a shell, and lets a process that sleeps live on."""

    children: ClassVar[list[subprocess.Popen[bytes]]] = []

    def let_sleep(self, seconds: str) -> None:
        Stays.children.append(subprocess.Popen(["sleep", seconds]))

    async def step(self, agent: str, action: Message) -> Step:
        if action.text.startswith("bash sleep"):
            self.let_sleep(action.text.split()[2])
        if action.text.startswith("bash "):
            return Step(seen("4217x" if "4200+17" in action.text else ""))
        return await super().step(agent, action)


class Moves(Quiz):
    """A text decides where this process works."""

    def right(self, said: str) -> bool:
        if said.startswith(".."):
            os.chdir("/")
        return said == self.colour


async def test_a_sound_world_holds():
    found = await attack_env(World())
    assert found.report.passed, [tally.broken for tally in found.tallies]
    tried = {tally.category: tally.tried for tally in found.tallies}
    assert tried["stuffing"] >= 20
    assert min(tried[name] for name in ("injection", "escapes", "bombs", "stalls", "poisoning", "races")) >= 2
    assert found.report["signals"].outcome is Outcome.NOT_OFFERED
    assert found.tried == found.held == sum(tried.values())


@pytest.mark.parametrize(
    ("env", "category", "told"),
    [
        (Mentions, "stuffing", "in a list: it earned 1 and counts as a success, where 0 is usual"),
        (Believes, "injection", "it earned 1 and counts as a success"),
        (Runs, "injection", "a file outside of the world was touched"),
        (Visits, "injection", "a service on loopback that is not the world's was reached 1 times"),
        (Moves, "injection", "the working directory of this process changed"),
        (Encodes, "escapes", "the play would be excused: UnicodeEncodeError"),
        (Recurses, "bombs", "the play would be excused: RecursionError"),
    ],
)
async def test_a_weak_world_is_found_out(env, category, told, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = await attack_env(World(env), only=[category])
    assert found.report.failed == (category,)
    assert told in found.report[category].detail
    assert found.held < found.tried


async def test_a_loop_that_stands_still_is_seen(monkeypatch):
    monkeypatch.setattr(case, "BLOCKED_S", 0.5)
    found = await attack_env(World(Slow), only=["stalls"])
    assert "the event loop was blocked for" in found.report["stalls"].detail


async def test_what_one_play_does_to_later_ones_is_seen():
    Remembers.shift = 0
    found = await attack_env(World(Remembers), only=["bombs"])
    assert found.report.failed == ("poisoning",)
    assert "after bombs, an honest play is another: after 1 actions" in found.report["poisoning"].detail


async def test_what_an_attack_leaves_running_is_seen(monkeypatch):
    monkeypatch.setattr(categories, "MARK_S", "31.0625")
    monkeypatch.setattr("sojourn.checks.attack.MARK_S", "31.0625")

    class Family(World):
        about = About(source="ours", licence="Apache-2.0", text_actions=("bash {}",))

    try:
        found = await attack_env(Family(Stays), only=["stalls"])
    finally:
        for child in Stays.children:
            child.kill()
            child.wait()
    assert "a process of an attack lives on: sleep 31.0625" in found.report["remains"].detail


class Empty(World):
    def tasks(self, split: str) -> list[Task]:
        return []


class Single(World):
    """One task alone, whose text bash would run."""

    about: ClassVar[About] = About(source="ours", licence="Apache-2.0", text_actions=("bash {}",))

    def tasks(self, split: str) -> list[Task]:
        return super().tasks(split)[:1]


async def test_a_world_without_tasks_is_refused_in_one_sentence():
    with pytest.raises(ConfigError, match="the split 'train' of the world has no tasks"):
        await attack_env(Empty())


async def test_every_program_is_run_where_there_is_one_task_alone():
    class Pretends(Stays):
        def let_sleep(self, seconds: str) -> None:
            pass

    found = await attack_env(Single(Pretends), only=["signals"])
    assert found.tallies[0].tried == 2 * len(SIGNALS)  # it is taken for bash, and for Python


def test_the_command(tmp_path):
    done = sojourn(tmp_path, "check", "toy", "--attack")
    assert done.returncode == 0, done.stderr
    assert "injection" in done.stdout
    for words, told in (
        (["grpo", "--attack"], "only a world is attacked"),
        (["toy", "--attack", "--episodes", "2"], "attacks choose their tasks themselves"),
    ):
        done = sojourn(tmp_path, "check", *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert told in done.stderr


@dataclass
class Ask:
    """Answers questions in SQL, or hangs for ever, unless SQLite bounds a query itself."""

    seed: int
    bounded: bool = False
    opened: ClassVar[list[sqlite3.Connection]] = []

    def __post_init__(self) -> None:
        self.given: str | None = None
        self.database = sqlite3.connect(":memory:")
        self.opened.append(self.database)
        if self.bounded:
            self.database.set_progress_handler(lambda: 1, 100_000)

    def query(self, sql: str) -> str:
        """Runs a query."""
        try:
            return str(self.database.execute(sql).fetchmany(5))
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            return f"error: {error}"

    def answer(self, text: str) -> None:
        """Ends the play."""
        self.given = text

    def reward(self) -> float | None:
        return None if self.given is None else float(self.given == str(self.seed))

    def expert(self) -> str:
        return f"answer('{self.seed}')"

    def close(self) -> None:
        self.database.close()


@pytest.fixture
def interrupted():
    yield
    for database in Ask.opened:  # a query without end would keep a core busy beside all later tests
        with suppress(sqlite3.ProgrammingError):  # of a play whose database is closed
            database.interrupt()
    Ask.opened.clear()


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("bounded", [False, True])
async def test_a_query_without_end_is_tried(bounded, monkeypatch):
    if not bounded:  # whose other calls may take their time on a busy machine
        monkeypatch.setattr(case, "STALL_S", 0.5)
    found = await attack_env(Tools(cls=Ask, arguments={"bounded": bounded}), only=["stalls"])
    stalls = found.report["stalls"]
    assert stalls.outcome is (Outcome.PASSED if bounded else Outcome.FAILED), stalls.detail
    told = "'select count(*) from (with recursive n(i) as (select 1 unio as call query sql: the play would be excused"
    assert bounded or told in stalls.detail
