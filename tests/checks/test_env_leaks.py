"""Worlds that leave something behind: when a play is closed, cancelled or killed, and when the family is closed."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from test_check_env import Counter, World

from sojourn.checks.env import check_env, resources
from sojourn.types import Message, Observation, Step

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


class Mortal(Counter):
    """Does something odd where it starts; not to be forked, for the fork would not have started."""

    fork = None  # not offered

    async def start(self) -> Observation:
        self.begin()
        return await super().start()

    def begin(self) -> None: ...


class LeaksProcess(Mortal):
    kept: list[subprocess.Popen] = []  # noqa: RUF012

    def begin(self) -> None:
        self.kept.append(subprocess.Popen(SLEEP))


class LeaksDaemon(Mortal):
    """A process that no longer comes from this one."""

    def begin(self) -> None:
        subprocess.run(["sh", "-c", 'setsid "$@" > /dev/null 2>&1 &', "sh", *SLEEP], check=True)


class LeavesDead(Mortal):
    """A process that has ended, and that nobody asked for its status."""

    kept: list[subprocess.Popen] = []  # noqa: RUF012

    def begin(self) -> None:
        self.kept.append(subprocess.Popen(["true"]))


class LeaksDescriptor(Mortal):
    def begin(self) -> None:
        self.kept = os.open(os.devnull, os.O_RDONLY)


class LeaksFolder(Mortal):
    def begin(self) -> None:
        tempfile.mkdtemp(prefix="a-world-")


class LeaksOfChild(Mortal):
    """What is left is made by another process."""

    def begin(self) -> None:
        subprocess.run(["mktemp"], check=True, stdout=subprocess.DEVNULL)


class LeaksWhenLeft(Mortal):
    """Cleans up only after a play that ended."""

    over = False

    def begin(self) -> None:
        self.folder = tempfile.mkdtemp()

    async def step(self, agent: str, action: Message) -> Step:
        step = await super().step(agent, action)
        self.over |= step.done
        return step

    async def close(self) -> None:
        if self.over:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(self.folder)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (LeaksProcess, "leaves the process "),
        (LeaksDaemon, "leaves the process "),
        (LeavesDead, "leaves the process true (dead)"),
        (LeaksDescriptor, "leaves the open file /dev/null"),
        (LeaksFolder, "leaves the temporary file a-world-"),
        (LeaksOfChild, "leaves the temporary file tmp."),
        (LeaksWhenLeft, "closed after 0 actions leaves the temporary file tmp"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_what_a_play_leaves_behind_is_caught(env, told):
    report = await check_env(World(env))
    assert report.failed == ("it closes",)
    assert told in report["it closes"].detail
    for kept in (*LeaksProcess.kept, *LeavesDead.kept):
        kept.wait(10)  # those that are left are ended with the check


class Pooled(Mortal):
    """What all plays share is opened by the first that needs it."""

    pool: list[object] = []  # noqa: RUF012

    def begin(self) -> None:
        if not self.pool:
            self.pool.append(tempfile.TemporaryDirectory())
            self.pool.append(open(os.devnull))  # noqa: SIM115
            self.pool.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))


async def test_what_is_opened_once_and_kept_is_no_leak():
    report = await check_env(World(Pooled))
    assert report.passed, [report[name] for name in report.failed]
    folder, file, process = Pooled.pool
    os.rmdir(folder.name)  # it is still there, although the check is over
    folder._finalizer.detach()
    file.close()
    process.communicate()


# Cancelled


class Waits(Mortal):
    """Holds something while it waits for the second time, in its start and in every action."""

    async def start(self) -> Observation:
        await asyncio.sleep(0)
        await self.hold()
        return self.show()

    async def step(self, agent: str, action: Message) -> Step:
        step = await super().step(agent, action)
        await self.hold()
        return step

    async def hold(self) -> None:
        folder = tempfile.mkdtemp()
        try:
            await asyncio.sleep(0)
        finally:
            os.rmdir(folder)


class LetsGoLate(Waits):
    async def hold(self) -> None:
        folder = tempfile.mkdtemp()
        await asyncio.sleep(0)
        os.rmdir(folder)


class LetsGoLateInSteps(LetsGoLate):
    async def start(self) -> Observation:
        return await Counter.start(self)


class Translates(Waits):
    async def hold(self) -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise RuntimeError("interrupted") from None


class Remembers(Waits):
    """A cancelled play has changed the next."""

    extra = 0

    async def hold(self) -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            Remembers.extra += 1
            raise

    async def start(self) -> Observation:
        observation = await super().start()
        self.count = Remembers.extra
        return observation if not self.count else self.show()

    def expert(self) -> str:
        return "more"


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (LetsGoLate, "cancelled at await 2 of start() and closed, it leaves the temporary file tmp"),
        (LetsGoLateInSteps, "cancelled at await 2 of action 1 and closed, it leaves the temporary file tmp"),
        (Translates, "cancelled in start(), it went on, with RuntimeError('interrupted')"),
        (Remembers, "after plays that were cancelled, after 0 actions observation is"),
    ],
)
async def test_a_world_that_cannot_be_cancelled_somewhere_is_caught(env, told):
    report = await check_env(World(env))
    assert report.failed == ("it can be cancelled",), [report[name] for name in report.failed]
    assert told in report["it can be cancelled"].detail


async def test_a_world_that_can_be_cancelled_anywhere_is_told_where_it_was():
    report = await check_env(World(Waits))
    assert report.passed, [report[name] for name in report.failed]
    assert report["it can be cancelled"].detail == "cancelled at 6 awaits, it stops and leaves nothing"


# Killed, and families

HELD = """
import subprocess, sys
from dataclasses import dataclass
from test_check_env import Counter, World

class Held(Counter):
    '''Beside a process that ends when nobody writes to it any more, or never.'''
    code = "import sys; sys.stdin.read()"

    async def start(self):
        self.process = subprocess.Popen([sys.executable, "-c", self.code], stdin=subprocess.PIPE)
        return await super().start()

    async def close(self):
        if hasattr(self, "process"):
            self.process.kill()
            self.process.communicate()

    fork = None

class Lasting(Held):
    code = "import time; time.sleep(600)"

@dataclass(frozen=True)
class Family(World):
    env: str = "Held"

    def make(self, task):
        return globals()[self.env](task)
"""


@pytest.mark.parametrize("env", ["Held", "Lasting"])
async def test_what_outlives_a_killed_process_is_caught(tmp_path, monkeypatch, env):
    (tmp_path / "held_family.py").write_text(HELD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sojourn.checks.env.other_process.ENDS_S", 100.0 if env == "Held" else 0.5)
    try:
        report = await check_env(__import__("held_family").Family(env))
    finally:
        sys.modules.pop("held_family", None)
    if env == "Held":
        assert report.passed, [report[name] for name in report.failed]
        assert report["no process outlives the run"].detail == "1 processes end with the one that plays"
    else:
        assert report.failed == ("no process outlives the run",)
        assert "its process was killed, but python" in report["no process outlives the run"].detail


async def test_what_a_family_leaves_behind_is_caught():
    class Leaky(World):
        async def open(self) -> None:
            self.opened = os.open(os.devnull, os.O_RDONLY)
            tempfile.mkdtemp(prefix="a-family-")

        async def close(self) -> None:
            os.close(self.opened)

    Leaky.__setattr__ = object.__setattr__
    report = await check_env(Leaky())
    assert report.failed == ("the family closes",)
    assert "a family that is closed leaves the temporary file a-family-" in report["the family closes"].detail


async def test_what_a_family_opens_once_for_good_is_no_leak():
    class Library(World):
        loaded: list[int] = []  # noqa: RUF012

        async def open(self) -> None:
            if not self.loaded:
                self.loaded.append(os.open(os.devnull, os.O_RDONLY))
                threading.Thread(target=stop.wait, name="of a library").start()

        async def close(self) -> None: ...

    stop = threading.Event()
    try:
        report = await check_env(Library())
    finally:
        stop.set()
        os.close(Library.loaded[0])
    assert report.passed, [report[name] for name in report.failed]
    assert report["the family closes"].detail == "nothing is left but what is used again"


async def test_a_family_that_does_not_close_is_caught():
    class Stuck(World):
        async def open(self) -> None: ...

        async def close(self) -> None:
            raise RuntimeError("it is busy")

    report = await check_env(Stuck())
    assert report.failed == ("the family closes",)


# What is held


def test_processes_are_found_by_descent_and_by_their_mark():
    with resources.scratch() as folder:
        before = resources.processes(str(folder))
        child = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        found = {process.number: process for process in resources.processes(str(folder)).keys() - before.keys()}
        assert found.keys() == {child.pid, grandchild}
        child.kill()
        child.wait()
        left = resources.processes(str(folder)).keys() - before.keys()
        assert {process.number for process in left} == {grandchild}  # an orphan, known by its environment
        assert resources.alive(found[grandchild])
        assert not resources.alive(found[child.pid])
        os.kill(grandchild, signal.SIGKILL)
        child.stdout.close()


def test_a_scratch_folder_is_where_temporary_files_go_until_it_is_over():
    outside = tempfile.gettempdir()
    with resources.scratch() as folder:
        assert Path(tempfile.mkdtemp()).parent == folder
        assert os.environ["TMPDIR"] == str(folder)
        for inside in folder.iterdir():
            inside.rmdir()
    assert not folder.exists()
    assert tempfile.gettempdir() == outside
