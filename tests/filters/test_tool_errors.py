"""What worlds that run code or call tools tell of the calls that failed, which `roc` and `tool_use` read."""

import shutil

import pytest

from sojourn.envs.tools import as_family
from sojourn.types import Message, Role
from sojourn_worlds.python import Python
from sojourn_worlds.repo import Repo
from sojourn_worlds.terminal import Terminal

sandboxed = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


async def told(world, *said):
    """`Step.info` of each action of a play."""
    env = world.make(world.tasks("train")[0])
    await env.start()
    try:
        return [(await env.step("agent", Message(Role.ASSISTANT, text))).info for text in said]
    finally:
        await env.close()


@sandboxed
async def test_python_tells_whether_code_raised():
    infos = await told(Python(), "1 + 1", "1 / 0", "1 +", "import os; os._exit(3)", "restart", "submit 0")
    assert infos == [{"error": 0.0}, *[{"error": 1.0}] * 3, {}, {}]
    assert await told(Python(turns=1), "1 / 0") == [{"error": 1.0}]  # the last turn too


@sandboxed
async def test_the_terminal_tells_whether_a_command_failed():
    assert await told(Terminal(), "ls", "cat nothing", "done") == [{"error": 0.0}, {"error": 1.0}, {}]
    assert await told(Terminal(turns=1), "false") == [{"error": 1.0}]


@sandboxed
async def test_a_repository_tells_whether_its_tests_crashed():
    world = Repo()
    file = next(iter(world.make(world.tasks("train")[0]).files))
    broken = f"write {file}\nraise OSError"
    assert await told(world, f"read {file}", broken, "test", "submit") == [{"error": 0.0}] * 2 + [{"error": 1.0}, {}]


class Adds:
    """Add numbers."""

    tasks = ({}, {}, {}, {}, {})

    def __init__(self) -> None:
        self.sum = 0

    def add(self, number: int) -> int:
        """Add a number."""
        self.sum += number
        return self.sum

    def reward(self) -> float | None:
        return 1.0 if self.sum > 2 else None


async def test_tools_tell_that_a_call_worked():
    assert await told(as_family(Adds), "add(1)", "add(2)") == [{"error": 0.0}, {"error": 0.0}]
