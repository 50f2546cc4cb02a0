"""Plays beside the event loop, for worlds that run code which would hold up whoever waits for something else.

A world has one thread or several, each there while plays are in it, with an event loop of its own. A play stays in one,
so it may hold what must stay in one thread (a window, a database); what plays of one thread wait for, they wait for
beside each other, and what they compute, one after the other.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from sojourn.protocols import Env, HasBlobs
from sojourn.types import Message, Observation, Step

ALL_CALLS = frozenset({"start", "step", "fork", "expert"})
OPTIONAL_CALLS = frozenset({"fork", "expert", "state_key"})


class EnvThread:
    """One of a world's threads: `enter` and `leave` count the plays that are in it; it ends with the last."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.plays = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stop: asyncio.Event | None = None
        self.lock = threading.Lock()  # `leave` is called by the thread itself

    def enter(self) -> None:
        with self.lock:
            self.plays += 1
            if self.loop is None:
                self.loop, self.stop = asyncio.new_event_loop(), asyncio.Event()
                serving = threading.Thread(target=_serve, args=(self.loop, self.stop), name=self.name, daemon=True)
                serving.start()

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
    """The threads of a world; a play that begins goes into the one that has the fewest."""

    def __init__(self, count: int, name: str) -> None:
        self.all = [EnvThread(f"{name}-{number}") for number in range(count)]

    def make(self, make: Callable[[], Env], offers: Collection[str], slow: Collection[str] = ALL_CALLS) -> ThreadedEnv:
        """A play in one of them; see `Aside`."""
        return ThreadedEnv(make, self.all, offers, slow)

    def enter(self) -> None:
        """They stay until as many `leave` again, for what plays share that stays with its event loop."""
        for thread in self.all:
            thread.enter()

    def leave(self) -> None:
        for thread in self.all:
            thread.leave()


class ThreadedEnv:
    """A play in one of a world's threads, where it is made too, at its start. It is used as the play itself would be,
    whose `offers` are known before (see `Env`).

    `slow` are the calls that are made there; others are made at once. A call that is given up is not waited for; the
    close comes after it, and is made whether or not anybody waits for it. A fork is in the thread of its play.
    """

    def __init__(
        self, make: Callable[[], Env], threads: Sequence[EnvThread], offers: Collection[str], slow: Collection[str]
    ) -> None:
        self.make, self.threads, self.offers, self.slow_calls = make, threads, offers, slow
        self.env: Any = None if "start" in slow else make()
        self.thread: EnvThread | None = None  # that it is in
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
        """The images that the play itself has shown."""
        return self.env.blobs if isinstance(self.env, HasBlobs) else {}

    def __getattr__(self, name: str) -> Any:
        if name in (*OPTIONAL_CALLS, "play") or self.env is None:
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
        made: list[Env] = []
        try:
            await self._call("fork", lambda: self._fork_env(made))
        except asyncio.CancelledError:
            if self.thread is not None:
                await asyncio.shield(asyncio.wrap_future(self.thread.call(self._close_forks(made))))
            raise
        twin = ThreadedEnv(lambda: made[0], self.threads, self.offers, self.slow_calls)
        twin.env, twin.thread = made[0], self.thread
        if self.thread is not None:
            self.thread.enter()
        return twin

    async def _expert(self) -> str:
        return await self._call("expert", lambda: _settled(self.env.expert))

    def _state_key(self) -> str:
        return self.env.state_key()

    async def _call(self, name: str, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if name not in self.slow_calls or self.closed:
            return await call()
        if self.thread is None:
            self.thread = min(self.threads, key=lambda thread: thread.plays)
            self.thread.enter()
        given_up = threading.Event()
        try:
            return await asyncio.wrap_future(self.thread.call(self._in_thread(call, given_up)))
        except asyncio.CancelledError:
            given_up.set()
            raise

    async def _in_thread(self, call: Callable[[], Coroutine[Any, Any, Any]], given_up: threading.Event) -> Any:
        if given_up.is_set():  # while others were in the thread
            return None
        self.running_call = asyncio.current_task()
        if self.running_call is not None:
            self.running_call.add_done_callback(_ignore_error)
        return await call()

    async def _start_env(self) -> Observation:
        if self.env is None:
            self.env = self.make()
        return await self.env.start()

    async def _fork_env(self, made: list[Env]) -> None:
        made.append(await self.env.fork())

    async def _close_forks(self, made: list[Env]) -> None:
        await self._wait_for_running_call()
        for play in made:
            await play.close()

    async def _close_env(self) -> None:
        await self._wait_for_running_call()
        if self.env is not None:
            await self.env.close()

    async def _wait_for_running_call(self) -> None:
        """Until a call that was given up has ended."""
        if self.running_call is not None and not self.running_call.done():
            await asyncio.wait({self.running_call})


def _ignore_error(task: asyncio.Task[Any]) -> None:
    """The error of a call that was given up is nobody's: without this, asyncio would print it."""
    if not task.cancelled():
        task.exception()


def offered_calls(play: object) -> frozenset[str]:
    """Which of the optional calls a play has, or a class of plays."""
    return frozenset(name for name in OPTIONAL_CALLS if hasattr(play, name))


async def _settled(call: Callable[[], Any]) -> Any:
    said = call()
    return await said if inspect.isawaitable(said) else said


def _serve(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(_until(ended))


async def _until(ended: asyncio.Event) -> None:
    await ended.wait()
