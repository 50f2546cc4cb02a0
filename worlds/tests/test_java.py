"""Java machines: held, given back, and gone, whenever a play or a family is given up, or its process killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from sojourn.types import Message, Role
from sojourn_worlds.scienceworld import ScienceWorld
from sojourn_worlds.textworld_express import TextWorldExpress
from tests.envs.busy import given_up_while_it_queues

if shutil.which("java") is None:
    pytest.skip("needs java", allow_module_level=True)
GONE_S = 100.0
LOOK = Message(Role.ASSISTANT, "look around")


def small(name: str) -> Any:
    pytest.importorskip(name)
    if name == "scienceworld":
        return ScienceWorld(experiments=("find-plant",))
    return TextWorldExpress(games=("coin",))


def machines() -> set[psutil.Process]:
    """The Java machines of this process."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # another's, which ends just now
            if "java" in process.name():
                found.add(process)
    return found


@pytest.fixture(params=["scienceworld", "textworld_express"])
def family(request) -> Any:
    return small(request.param)


async def started(family: Any) -> Any:
    play = family.make(family.tasks("train")[0])
    await play.start()
    return play


async def test_a_close_that_is_given_up_gives_the_machine_back(family) -> None:
    before = machines()
    play = await started(family)
    assert len(machines() - before) == 1
    await given_up_while_it_queues(play.close())
    assert machines() == before
    assert family.machine.holders == 0


async def test_a_family_that_is_closed_and_given_up_lets_its_machine_go(family) -> None:
    before = machines()
    await family.open()
    await (await started(family)).close()
    assert machines() != before
    await given_up_while_it_queues(family.close())
    assert machines() == before
    assert family.machine.holders == 0


async def test_a_start_that_is_given_up_takes_nothing(family) -> None:
    before = machines()
    play = family.make(family.tasks("train")[0])
    await given_up_while_it_queues(play.start())
    await play.close()
    assert machines() == before
    assert family.machine.holders == 0


def own_threads() -> ThreadPoolExecutor:
    """Those of this loop from here on; their `shutdown` waits for all that they still do."""
    threads = ThreadPoolExecutor(4)
    asyncio.get_running_loop().set_default_executor(threads)
    return threads


class Gate:
    """A lock that says when somebody wants it, and lets nobody through before it is opened."""

    def __init__(self) -> None:
        self.wanted, self.opened, self.lock = threading.Event(), threading.Event(), threading.Lock()

    def __enter__(self) -> None:
        self.wanted.set()
        self.opened.wait()
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()


@pytest.mark.parametrize("act", ["start", "fork"])
async def test_what_is_given_up_while_it_gets_its_machine_gives_it_back(family, act: str) -> None:
    before, gate, threads = machines(), Gate(), own_threads()
    play = await started(family) if act == "fork" else family.make(family.tasks("train")[0])
    family.machine.lock = gate
    doing = asyncio.create_task(getattr(play, act)())
    await asyncio.to_thread(gate.wanted.wait)
    doing.cancel()
    await asyncio.sleep(0)
    closing = asyncio.create_task(play.close())
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.wait({doing, closing})
    threads.shutdown()
    assert doing.cancelled()
    assert family.machine.holders == 0
    assert machines() == before


async def test_a_family_that_is_given_up_while_its_machine_starts_keeps_none() -> None:
    family, before, gate, threads = small("textworld_express"), machines(), Gate(), own_threads()
    family.machine.lock = gate
    opening = asyncio.create_task(family.open())
    await asyncio.to_thread(gate.wanted.wait)
    opening.cancel()
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.wait({opening})
    threads.shutdown()
    assert opening.cancelled()
    assert family.machine.holders == 0
    assert machines() == before


async def test_a_step_that_was_given_up_is_not_done_after_its_machine_was_given_back() -> None:
    """It would disturb the next play there."""
    family, threads = small("scienceworld"), own_threads()
    await family.open()
    play = await started(family)
    machine = play.lease.take()
    machine.lock = gate = Gate()
    stepping = asyncio.create_task(play.step("agent", LOOK))
    await asyncio.to_thread(gate.wanted.wait)
    stepping.cancel()
    server = play.server
    await play.close()
    gate.opened.set()
    threads.shutdown()
    assert server.getNumMoves() == 0
    own_threads()
    await family.close()


@pytest.mark.parametrize("name", ["scienceworld", "textworld_express"])
def test_nothing_is_left_of_a_process_that_was_killed_while_it_played(name: str) -> None:
    """Killed by SIGKILL, in the midst of a step of one of two plays."""
    script = (
        "import asyncio\n"
        "from test_java import *\n"
        "async def main():\n"
        f"    family = small({name!r})\n"
        "    plays = [await started(family) for _ in range(2)]\n"
        "    print(*(process.pid for process in machines()), flush=True)\n"
        "    while True:\n"
        "        await plays[0].step('agent', LOOK)\n"
        "asyncio.run(main())\n"
    )
    small(name)
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (here, here.parents[1])))}
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None
    java = [psutil.Process(int(number)) for number in child.stdout.readline().split()]
    assert len(java) == (2 if name == "scienceworld" else 1)
    assert all("java" in process.name() for process in java)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    deadline = time.monotonic() + GONE_S
    while any(map(alive, java)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, java))


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
