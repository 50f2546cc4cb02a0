"""Whatever an agent leaves behind is judged within limits, and whatever it does to its grader is no success."""

import asyncio
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tracemalloc

import pytest
from bombs import ARCHIVES, HONEST, HURTS, TEXTS

from sojourn.checks.env.resources import processes
from sojourn.envs.grader import _FORK_SERVER, Grader, Limits
from sojourn.envs.sandbox import Entry, Tree
from sojourn.errors import InfrastructureError
from sojourn.types import Message, Role
from sojourn_worlds.terminal import KINDS, Terminal, check_of, job_of
from sojourn_worlds.terminal.job import parse_json, unpack_archive

LOW = Limits(memory_bytes=2**27, cpu_s=1, wall_s=3.0)
RIGHT = Tree({"/task/a.txt": Entry.file("right")})
PLAY = """
import asyncio, resource, sys
from sojourn.envs.sandbox import Entry
from sojourn_worlds.terminal import Terminal
from sojourn.types import Message, Role
async def main():
    family = Terminal(kinds=("pack",))
    env = family.make(family.tasks("test")[0])
    await env.start()
    with open(sys.argv[1], "rb") as file:
        await env.sandbox.write({"data.tar.gz": Entry.file(file.read())})
    env.tree = await env.sandbox.tree()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = await env.step("agent", Message(Role.ASSISTANT, "done"))
    await env.close()
    print(step.rewards["agent"], step.success, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
asyncio.run(main())
"""


def tree_of(name: str, data: bytes) -> Tree:
    return Tree({f"/task/{name}": Entry.file(data)})


async def until(so) -> None:
    for _ in range(10_000):
        if so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come to that")


@pytest.fixture
async def grader():
    """One that must leave no process behind."""
    before = processes("no such mark")
    grader = Grader()
    yield grader
    await grader.close()
    await until(lambda: processes("no such mark").keys() <= before.keys())


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_an_archive_of_holes_costs_the_trainer_nothing(tmp_path):
    """A few kilobytes, a gigabyte when unpacked: neither bytes nor a success come of it."""
    bomb = tmp_path / "data.tar.gz"
    bomb.write_bytes(ARCHIVES["sparse members"])
    assert bomb.stat().st_size < 20_000
    played = subprocess.run(
        [sys.executable, "-c", PLAY, str(bomb)], capture_output=True, text=True, cwd=os.getcwd(), check=True
    )
    reward, success, kilobytes = played.stdout.split()
    assert (reward, success) == ("0.0", "False")
    assert int(kilobytes) < 100_000


@pytest.mark.parametrize("name", ARCHIVES)
def test_no_archive_is_unpacked_beyond_its_limits(name):
    found = unpack_archive(ARCHIVES[name])
    assert found is None or sum(map(len, found.values())) + len(found) < 1_000
    assert unpack_archive(HONEST) == {"data/0.txt": b"honest"}


def test_what_follows_an_archive_is_not_unpacked():
    zeros = gzip.compress(gzip.decompress(HONEST) + bytes(2**26))
    tracemalloc.start()
    assert unpack_archive(zeros) == {"data/0.txt": b"honest"}
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**25


@pytest.mark.parametrize("name", ["depth", "digits", "keys", "numbers", "depth of objects"])
def test_no_json_is_read_beyond_its_limits(name):
    assert parse_json(TEXTS[name]) is None


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_job_says_no_to_bombs(kind, grader):
    """In the place of every file that a job names."""
    grader.limits = LOW
    family = Terminal(kinds=(kind,))
    task = family.tasks("test")[0]
    instruction, files = job_of(task).instruction, job_of(task).files
    names = {*files, *re.findall(r"[\w/.-]+\.\w+", instruction), *re.findall(r"\b[a-z]+\b", instruction)}
    asked = f"{check_of.__module__}:{check_of.__name__}", dict(task.data), task.seed, task.split
    for bomb in [TEXTS["lines"], TEXTS["depth"], TEXTS["digits"], *ARCHIVES.values()]:
        tree = Tree({f"/task/{name}": Entry("file", bomb[: 2**20], 0o755) for name in names})
        assert await grader(*asked, tree=tree) is not True


@pytest.mark.parametrize("how", HURTS)
async def test_a_grader_that_is_hurt_says_nothing(how, grader):
    grader.limits = LOW
    assert await grader("bombs:hurt", how, tree=RIGHT) is None
    grader.limits = Limits()
    assert await grader("bombs:right", "right", tree=RIGHT) is True
    assert await grader("bombs:right", "wrong", tree=RIGHT) is False


async def test_a_grader_may_start_and_leave_nothing(grader):
    assert await grader("bombs:bounds", tree=RIGHT) == [0, 0]


async def test_time_on_a_processor_is_limited_by_itself():
    grader = Grader(Limits(cpu_s=1, wall_s=1_000))
    async with asyncio.timeout(200):
        assert await grader("bombs:hurt", "computes", tree=RIGHT) is None
    await grader.close()


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize("limits", [Limits(), Limits(wall_s=1e-6)])
async def test_a_job_is_judged_by_the_process_that_may_die(limits):
    family = Terminal(kinds=("count_lines",))
    env = family.make(family.tasks("test")[0])
    await env.start()
    for command in env.job.solution:
        await env.step("agent", Message(Role.ASSISTANT, command))
    env.grader.limits = limits
    assert (await env.step("agent", Message(Role.ASSISTANT, "done"))).success is (limits == Limits())
    await env.close()


async def test_gradings_do_not_wait_for_each_other(grader):
    grader.limits = Limits(wall_s=1_000)
    slow = asyncio.create_task(grader("bombs:hurt", "sleeps", tree=RIGHT))
    assert await asyncio.gather(*[grader("bombs:right", "right", tree=RIGHT) for _ in range(30)]) == [True] * 30
    assert not slow.done()
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow


async def test_a_judgement_that_is_cancelled_is_killed():
    """Also where its own limit is far: nobody waits for it any more."""
    before = processes("no such mark").keys()

    def count() -> int:
        return len(processes("no such mark").keys() - before)  # what was there before may end meanwhile

    grader = Grader(Limits(wall_s=1_000))
    assert await grader("bombs:right", "right", tree=RIGHT)
    await until(lambda: count() == 1)
    asked = asyncio.create_task(grader("bombs:hurt", "sleeps", tree=RIGHT))
    await until(lambda: count() == 2)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await until(lambda: count() == 1)
    await grader.close()
    await until(lambda: count() == 0)


async def test_the_process_that_judges_is_started_again(grader):
    assert await grader("bombs:right", "right", tree=RIGHT)
    assert _FORK_SERVER.process is not None
    first = _FORK_SERVER.process.pid
    asked = asyncio.create_task(grader("bombs:hurt", "sleeps", tree=RIGHT))
    await asyncio.sleep(0.1)
    os.kill(first, signal.SIGKILL)
    await until(lambda: _FORK_SERVER.ended)
    assert await grader("bombs:right", "right", tree=RIGHT)
    assert _FORK_SERVER.process.pid != first
    asked.cancel()


async def test_nobody_to_judge_is_no_failure_of_the_agent(grader):
    for function in ("no_such_module:check", "bombs:no_such_check", "bombs:hurt"):
        with pytest.raises(InfrastructureError, match=function.split(":")[0]):
            await grader(function, tree=RIGHT)
    with pytest.raises(ValueError, match="name a task by its seed"):
        await grader("bombs:right", "x" * 100_000, tree=RIGHT)


async def test_files_come_as_they_are(grader):
    """Names that are no text, links, rights, dates and data; also much of it."""
    entries = {
        os.fsdecode(b"/task/\xff\n"): Entry("file", bytes(range(256)), 0o600, 12.5),
        "/task/l": Entry("link", b"\xfe"),
        "/task/f": Entry.folder(),
        "/task/big": Entry.file(b"ab" * 2**24),
    }
    tree = Tree(entries)
    assert await grader("test_bombs:digest", tree=tree) == [tree.digest, [list(e[2:]) for e in entries.values()]]


def digest():
    return lambda tree: [tree.digest, [list(e[2:]) for e in tree.entries.values()]]


def test_bombs_are_small_enough_to_be_written_by_an_agent():
    assert max(map(len, ARCHIVES.values())) < 2**16
    assert json.loads(TEXTS["an exponent"])["port"] == float("inf")
