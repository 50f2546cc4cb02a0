"""Runs plays in threads of their own, for worlds whose code would block the event loop of the run.

A world has one thread or several. Each has its own event loop and exists while plays are in it. A play stays in one
thread, so it may hold objects that are bound to a thread (a window, a database). Plays in the same thread wait
concurrently, and compute one after the other.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from sojourn.abilities import PLAY_ABILITIES, HasNativeActions, blobs_of
from sojourn.protocols import Env
from sojourn.types import Message, Observation, Step

ALL_CALLS = frozenset({"start", "step", "fork", "expert"})


class EnvThread:
    """One thread of a world. `enter` and `leave` count its plays; it starts with the first and ends with the last."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.plays = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stop: asyncio.Event | None = None
        self.lock = threading.Lock()  # `leave` is also called from the thread itself

    def enter(self) -> None:
        with self.lock:
            self.plays += 1
            if self.loop is None:
                self.loop, self.stop = asyncio.new_event_loop(), asyncio.Event()
                thread = threading.Thread(target=_run_loop, args=(self.loop, self.stop), name=self.name, daemon=True)
                thread.start()

    def leave(self, *_: object) -> None:
        with self.lock:
            self.plays -= 1
            if not self.plays and self.loop is not None and self.stop is not None:
                self.loop.call_soon_threadsafe(self.stop.set)
                self.loop = None

    def call(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(work, self.loop)


class EnvThreads:
    """The threads of a world. A new play goes into the one with the fewest plays."""

    def __init__(self, count: int, name: str) -> None:
        self.all = [EnvThread(f"{name}-{number}") for number in range(count)]

    def make(self, make: Callable[[], Env], offers: Collection[str], slow: Collection[str] = ALL_CALLS) -> ThreadedEnv:
        """Returns a play that runs in one of the threads; see `ThreadedEnv` for the arguments."""
        return ThreadedEnv(make, self.all, offers, slow)

    def enter(self) -> None:
        """Keeps all threads alive until `leave` is called, for objects that plays share and that are bound to an event
        loop."""
        for thread in self.all:
            thread.enter()

    def leave(self) -> None:
        for thread in self.all:
            thread.leave()


class ThreadedEnv:
    """A play that is made and run in one of a world's threads, and used like the play itself.

    `make` returns the play, at its start. `offers` names the optional calls that the play has (see `Env`), as they must
    be known before it is made. The calls named in `slow` run in the thread; others run where they are called. A
    cancelled call is not waited for, but `close` runs after it, whether or not anybody waits for `close`. A fork stays
    in the thread of its play.
    """

    def __init__(
        self, make: Callable[[], Env], threads: Sequence[EnvThread], offers: Collection[str], slow: Collection[str]
    ) -> None:
        self.make, self.threads, self.offers, self.slow_calls = make, threads, offers, slow
        self.env: Any = None if "start" in slow else make()
        self.thread: EnvThread | None = None
        self.closed = False
        self.running_call: asyncio.Task[Any] | None = None  # in the thread
        if "fork" in offers:
            self.fork = self._fork
        if "expert" in offers:
            self.expert = self._expert
        if "state_key" in offers:
            self.state_key = self._state_key

    @property
    def blobs(self) -> Mapping[str, bytes]:
        """Returns the images that this play has shown, by their digest."""
        return blobs_of(self.env)

    def __getattr__(self, name: str) -> Any:
        if name in (*PLAY_ABILITIES, "env") or self.env is None:
            raise AttributeError(f"{type(self).__name__} has no attribute '{name}'", name=name, obj=self)
        return getattr(self.env, name)

    async def start(self) -> Observation:
        return await self._call("start", self._start_env)

    async def step(self, agent: str, action: Message) -> Step:
        return await self._call("step", lambda: self.env.step(agent, action))

    async def close(self) -> None:
        closed, self.closed = self.closed, True
        thread, self.thread = self.thread, None
        if thread is None:
            if self.env is not None and not closed:
                await self.env.close()
            return
        closing = thread.call(self._close_env())
        closing.add_done_callback(thread.leave)
        await asyncio.shield(asyncio.wrap_future(closing))

    async def _fork(self) -> ThreadedEnv:
        forks: list[Env] = []
        try:
            await self._call("fork", lambda: self._fork_env(forks))
        except asyncio.CancelledError:
            if self.thread is not None:
                await asyncio.shield(asyncio.wrap_future(self.thread.call(self._close_forks(forks))))
            raise
        copy = ThreadedEnv(lambda: forks[0], self.threads, self.offers, self.slow_calls)
        copy.env, copy.thread = forks[0], self.thread
        copy._offer_native_actions()
        if self.thread is not None:
            self.thread.enter()
        return copy

    async def _expert(self) -> str:
        return await self._call("expert", lambda: _awaited(self.env.expert))

    def _state_key(self) -> str:
        return self.env.state_key()

    async def _call(self, name: str, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if name not in self.slow_calls or self.closed:
            return await call()
        if self.thread is None:
            self.thread = min(self.threads, key=lambda thread: thread.plays)
            self.thread.enter()
        cancelled = threading.Event()
        try:
            return await asyncio.wrap_future(self.thread.call(self._in_thread(call, cancelled)))
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def _in_thread(self, call: Callable[[], Coroutine[Any, Any, Any]], cancelled: threading.Event) -> Any:
        if cancelled.is_set():  # the call was cancelled while others in the thread were running
            return None
        self.running_call = asyncio.current_task()
        if self.running_call is not None:
            self.running_call.add_done_callback(_ignore_error)
        return await call()

    async def _start_env(self) -> Observation:
        if self.env is None:
            self.env = self.make()
        shown = await self.env.start()
        self._offer_native_actions()
        return shown

    def _offer_native_actions(self) -> None:
        if isinstance(self.env, HasNativeActions):
            self.native_action = self.env.native_action

    async def _fork_env(self, forks: list[Env]) -> None:
        forks.append(await self.env.fork())

    async def _close_forks(self, forks: list[Env]) -> None:
        await self._wait_for_running_call()
        for fork in forks:
            await fork.close()

    async def _close_env(self) -> None:
        await self._wait_for_running_call()
        if self.env is not None:
            await self.env.close()

    async def _wait_for_running_call(self) -> None:
        """Waits until a cancelled call, if any, has ended."""
        if self.running_call is not None and not self.running_call.done():
            await asyncio.wait({self.running_call})


def _ignore_error(task: asyncio.Task[Any]) -> None:
    """Retrieves the error of a cancelled call, which nobody waits for: else asyncio would print it."""
    if not task.cancelled():
        task.exception()


async def _awaited(call: Callable[[], Any]) -> Any:
    result = call()
    return await result if inspect.isawaitable(result) else result


def _run_loop(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(_wait_for(stop))


async def _wait_for(stop: asyncio.Event) -> None:
    await stop.wait()
