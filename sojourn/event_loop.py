"""Runs asyncio so that a call which ignores its cancellation cannot block a run, or the end of the process, for
ever."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeVar

from sojourn.errors import InfrastructureError

T = TypeVar("T")
GRACE_S = 5.0  # the time in which a cancelled call must end

# Abandoned tasks are kept alive, as destroying one would again run the code that ignores its cancellation.
_abandoned: set[asyncio.Task[Any]] = set()
_stuck: list[ThreadPoolExecutor] = []  # pools with threads that did not end


@dataclass(eq=False)
class Watchdog:
    """Sets `given_up` when a call in `time_limit`, within a coroutine in `contained`, passes its deadline.

    There are many calls, and most end long before their deadlines, so one timer serves them all: when it fires after
    its call has ended, it is set to the deadline of the current call.
    """

    given_up: asyncio.Future[str]
    name: str = ""
    deadline: float | None = None  # in the event loop's time; None while no such call runs
    _timer: asyncio.TimerHandle | None = None

    def begin(self, name: str, seconds: float) -> None:
        """Sets the deadline of the call of this name to `seconds` from now."""
        loop = self.given_up.get_loop()
        self.name, self.deadline = name, loop.time() + seconds
        if self._timer is not None and self._timer.when() > self.deadline:
            self.close()
        if self._timer is None:
            self._timer = loop.call_at(self.deadline, self._check)

    def end(self) -> None:
        self.deadline = None

    def close(self) -> None:
        """Cancels the timer, which would outlive the coroutine."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def allow_grace(self) -> None:
        """Sets the deadline of the call to `GRACE_S` from now, once it is cancelled."""
        self.begin(self.name, GRACE_S)

    def _check(self) -> None:
        assert self._timer is not None
        due, self._timer = self._timer.when(), None
        if self.deadline is None or self.given_up.done():
            return
        if self.deadline > due:
            self._timer = self.given_up.get_loop().call_at(self.deadline, self._check)
        else:
            self.given_up.set_result(self.name)


class _Outcome(NamedTuple):
    value: Any
    error: BaseException | None


_watch: ContextVar[Watchdog | None] = ContextVar("watch", default=None)


class TimedCall(NamedTuple):
    """A call that has a time limit, and `grace_s` more to end once it is cancelled."""

    name: str
    limit: asyncio.Timeout
    grace_s: float


_call: ContextVar[TimedCall | None] = ContextVar("call", default=None)


@contextmanager
def time_limit(name: str, limit: asyncio.Timeout, seconds: float) -> Iterator[None]:
    """Lets `contained` give up the call inside where it does not end after `limit` cancels it at `seconds`.

    The call has `GRACE_S` to end, or `seconds` again where those are fewer. What it does in `off_the_clock` counts for
    nothing.
    """
    watch, outer, call = _watch.get(), _call.get(), TimedCall(name, limit, min(GRACE_S, seconds))
    if watch is not None:
        watch.begin(name, seconds + call.grace_s)
    _call.set(call)
    try:
        yield
    finally:
        _call.set(outer)  # no token is reset, as the end of the event loop closes abandoned calls from without
        if watch is not None:
            watch.end()


@contextmanager
def off_the_clock() -> Iterator[None]:
    """Stops the time limit of the call that this is a part of until the end of the block, as where a play waits for its
    turn, which is no fault of its world."""
    call, watch, loop = _call.get(), _watch.get(), asyncio.get_running_loop()
    due = None if call is None else call.limit.when()
    if call is None or due is None:
        yield
        return
    left = due - loop.time()
    call.limit.reschedule(None)
    if watch is not None:
        watch.end()
    try:
        yield
    finally:
        call.limit.reschedule(loop.time() + left)
        if watch is not None:
            watch.begin(call.name, left + call.grace_s)


async def contained(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the coroutine's result. Raises `InfrastructureError` where a call in `time_limit` ignores its
    cancellation; the task is then abandoned. When cancelled itself, it waits `GRACE_S` for the current call to end, and
    for later calls with a time limit as long as these may take."""
    watch = Watchdog(asyncio.get_running_loop().create_future())
    token = _watch.set(watch)
    task = asyncio.create_task(_outcome(coroutine))
    _watch.reset(token)
    try:
        await asyncio.wait({task, watch.given_up}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        watch.allow_grace()
        try:
            await asyncio.wait({task, watch.given_up}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            abandon(task)
        raise
    finally:
        watch.close()
    if not task.done():
        abandon(task)
        raise InfrastructureError(
            f"{watch.given_up.result()}() does not end and ignores its cancellation, so that it is abandoned: let "
            "CancelledError through"
        )
    outcome = task.result()
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def cancelled() -> bool:
    """Returns whether this task itself is cancelled, rather than something that the world waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _outcome(coroutine: Coroutine[Any, Any, Any]) -> _Outcome:
    """Returns the outcome as a value, as a SystemExit that leaves a task would end the event loop."""
    try:
        return _Outcome(await coroutine, None)
    except (Exception, SystemExit) as error:
        return _Outcome(None, error)


def abandon(task: asyncio.Task[Any]) -> None:
    """Gives up a task that is not done: nothing waits for it any more, not even the end of the event loop."""
    if not task.done():
        _abandoned.add(task)
        task.add_done_callback(_abandoned.discard)
        asyncio.tasks._unregister_task(task)  # because the end of `asyncio.run` waits for all registered tasks


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine as `asyncio.run` does, but waits at the end for tasks and threads no longer than `GRACE_S`."""
    runner, threads = asyncio.Runner(), ThreadPoolExecutor(min(32, (os.cpu_count() or 1) + 4), "asyncio")
    loop = runner.get_loop()
    loop.set_default_executor(threads)
    try:
        return runner.run(main)
    finally:
        loop.run_until_complete(_end(threads))
        runner.close()


async def _end(threads: ThreadPoolExecutor) -> None:
    """Cancels all other tasks and shuts the pool down; abandons what does not end within `GRACE_S`."""
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=GRACE_S)
        for task in tasks:
            abandon(task)
    shutdown = threading.Thread(target=threads.shutdown, daemon=True)
    shutdown.start()
    for _ in range(100):
        shutdown.join(0.0)
        if not shutdown.is_alive():
            return
        await asyncio.sleep(GRACE_S / 100)
    _stuck.append(threads)
    # asyncio waits for the end of its default pool, so it gets another one, which has no threads to wait for
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


def exit(code: int) -> NoReturn:
    """Ends the process, without waiting for abandoned tasks or stuck threads."""
    if not (_abandoned or _stuck):
        sys.exit(code)
    print(
        "sojourn: a call of the world still runs and ignores its cancellation; sojourn ends without waiting for it",
        file=sys.stderr,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
