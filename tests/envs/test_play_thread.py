"""Tools that take long: others go on meanwhile, the limit ends the turn, and what can be stopped is stopped."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from dataclasses import replace
from typing import ClassVar

import pytest
from made_world import Says, renderer

from sojourn.agents.plain import Plain
from sojourn.envs.play_thread import FAST_S, PlayThread
from sojourn.envs.tools import as_family
from sojourn.errors import ActionError
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.types import Ending, Message, Role, SamplingParams, ToolCall

PATIENCE_S = 20.0
ENDLESS = "select count(*) from (with recursive n(i) as (select 1 union all select i + 1 from n) select i from n)"


class Waits:
    """Go on when you are told to."""

    go: ClassVar[threading.Event] = threading.Event()
    begun: ClassVar[threading.Event] = threading.Event()
    closed: ClassVar[list[str]] = []

    def __init__(self, seed: int):
        self.seed, self.over = seed, False
        self.thread = threading.get_ident()

    def wait(self) -> str:
        """Waits."""
        self.begun.set()
        assert self.go.wait(PATIENCE_S)
        return "waited"

    def spin(self) -> str:
        """Counts for ever."""
        self.begun.set()
        n = 0
        while True:
            n += 1

    def where(self) -> bool:
        """Says whether this is the thread in which the object was made."""
        return threading.get_ident() == self.thread

    def refuse(self) -> None:
        raise ValueError("not now")

    def late(self) -> None:
        raise TimeoutError("a request took too long")

    def stop(self) -> None:
        self.over = True

    def reward(self) -> float | None:
        return 1.0 if self.over else None

    def state_key(self) -> str:
        return str(threading.get_ident() == self.thread)

    def expert(self) -> str:
        return "stop()" if threading.get_ident() == self.thread else "wait()"

    def close(self) -> None:
        self.closed.append("here" if threading.get_ident() == self.thread else "elsewhere")


class Database:
    """Ask the database."""

    opened: ClassVar[list[sqlite3.Connection]] = []

    def __init__(self, seed: int):
        self.database = sqlite3.connect(":memory:")  # which may be used in one thread only, but for `interrupt`
        self.opened.append(self.database)
        self.left = 3

    def query(self, sql: str) -> str:
        """Runs SQL."""
        self.left -= 1
        try:
            return str(self.database.execute(sql).fetchmany(5))
        except sqlite3.Error as error:
            return f"error: {error}"

    def reward(self) -> float | None:
        return None if self.left else 0.0

    def close(self) -> None:
        self.database.close()


def say(name: str, **arguments: object) -> Message:
    return Message(Role.ASSISTANT, calls=(ToolCall(name, arguments),))


async def started(plain: type):
    family = as_family(plain)
    env = family.make(family.tasks("train")[0])
    await env.start()
    return env


@pytest.fixture(autouse=True)
def fresh():
    Waits.go.clear()
    Waits.begun.clear()
    Waits.closed.clear()
    yield
    Waits.go.set()
    for database in Database.opened:  # a query without end would keep a core busy beside all later tests
        database.interrupt()
    Database.opened.clear()


async def until(true) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110  (a thread brings it about)
            await asyncio.sleep(0.001)


async def given_up(env, name: str) -> None:
    """Gives a tool up once it runs: one that has not begun would never be called."""
    step = asyncio.ensure_future(env.step("agent", say(name)))
    await until(Waits.begun.is_set)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(step, PATIENCE_S)


async def test_the_event_loop_goes_on_while_a_tool_takes_long():
    env = await started(Waits)

    async def other():
        Waits.go.set()

    step, _ = await asyncio.gather(env.step("agent", say("wait")), other())
    assert step.observation.messages[0].text == "waited"
    await env.close()


async def test_all_of_a_play_is_in_the_thread_in_which_it_was_made():
    env = await started(Waits)
    assert env.game.thread != threading.get_ident()
    assert (await env.step("agent", say("where"))).observation.messages[0].text == "True"
    assert (env.state_key(), await env.expert()) == ("True", "stop()")
    await env.close()
    assert Waits.closed == ["here"]
    await until(lambda: not any(thread.ident == env.game.thread for thread in threading.enumerate()))


async def test_what_a_tool_raises_comes_back():
    env = await started(Waits)
    with pytest.raises(ActionError, match="not now"):
        await env.step("agent", say("refuse"))
    with pytest.raises(TimeoutError, match="a request took too long"):
        await env.step("agent", say("late"))
    await env.close()


async def test_a_tool_in_python_that_never_ends_is_stopped_when_its_play_is_closed():
    env = await started(Waits)
    await given_up(env, "spin")
    await asyncio.wait_for(env.close(), PATIENCE_S)
    await until(lambda: Waits.closed == ["here"])
    await until(lambda: not any(thread.ident == env.game.thread for thread in threading.enumerate()))


async def test_close_does_not_wait_for_a_tool_that_runs():
    env = await started(Waits)
    await given_up(env, "wait")
    await asyncio.wait_for(env.close(), PATIENCE_S)
    assert not Waits.closed  # not before the tool has ended
    Waits.go.set()
    await until(lambda: Waits.closed == ["here"])


async def test_a_close_whose_caller_is_cancelled_runs_to_its_end():
    class ClosesLate(Waits):
        def close(self) -> None:
            Waits.begun.set()
            Waits.go.wait()
            super().close()

    env = await started(ClosesLate)
    closing = asyncio.ensure_future(env.close())
    await until(Waits.begun.is_set)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    Waits.go.set()
    await until(lambda: Waits.closed == ["here"])
    await until(lambda: not any(thread.ident == env.game.thread for thread in threading.enumerate()))


async def test_a_closed_play_can_be_asked_still():
    env = await started(Waits)
    await env.close()
    assert env.state_key() == "False"


async def test_objects_without_an_owner_leave_no_thread():
    thread = PlayThread("lonely")
    assert await thread.call(lambda: time.sleep(2 * FAST_S) or 3) == 3
    del thread
    await until(lambda: not any(thread.name == "lonely" for thread in threading.enumerate()))


@pytest.mark.parametrize(("plain", "said"), [(Database, f"query('{ENDLESS}')"), (Waits, "spin()")])
async def test_a_tool_without_end_is_a_failure_in_bounded_time_then_a_loss_and_holds_up_no_other_episode(plain, said):
    family, honest = as_family(plain), as_family(Waits)
    first = family.tasks("train")[0]
    limits = Limits(turns=1)

    def runner(world, text: str, seconds: float) -> Runner:
        config = Rollout(limits=replace(limits, stall_s=seconds), retries=0)
        return Runner(config, world, Plain(), renderer(), Says(text), 4096, 0)

    patient = runner(family, said, PATIENCE_S).play_episode(first, SamplingParams(200), "x")
    waiting = asyncio.ensure_future(patient)
    other = await runner(honest, "stop()", PATIENCE_S).play_episode(honest.tasks("train")[0], SamplingParams(200), "y")
    assert [t.ending for t in other.trajectories] == [Ending.DONE]
    assert not waiting.done()  # the other episode did not wait for it
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, PATIENCE_S)
    stuck = runner(family, said, 0.4)
    failed = await asyncio.wait_for(stuck.play_episode(first, SamplingParams(200), "x"), PATIENCE_S)
    assert failed.error == "InfrastructureError: the world did not answer within 0.4 s (rollout.limits.stall_s)"
    stuck._episode_counts[id(family)].completed = 2  # once episodes of this world have ended well
    lost = await asyncio.wait_for(stuck.play_episode(first, SamplingParams(200), "x"), PATIENCE_S)
    assert (lost.error, lost.trajectories[0].turns[-1].reward) == (None, -1.0)
