"""Runs the methods of an object in a thread of its own, so that one that takes long does not block the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

# The event loop itself waits this long for a call. Most tools answer sooner, and so fast calls of several plays run one
# after the other, in the order in which they were made, as they would without threads.
FAST_S = 0.002


class Stopped(BaseException):
    """Is raised in the thread of a play that has ended, where a call still runs."""


@dataclass
class _Work:
    call: Callable[[], Any]
    result: Future[Any]


class PlayThread:
    """A thread that makes calls one after the other. It ends after `close`, or when nobody holds it any more."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._last: Future[Any] | None = None
        self._thread = threading.Thread(target=_serve, args=(self._queue,), name=name, daemon=True)
        self._thread.start()
        self._ending = weakref.finalize(self, self._queue.put, None)

    @property
    def busy(self) -> bool:
        """Returns whether a call still runs."""
        return self._last is not None and not self._last.done()

    @property
    def name(self) -> str:
        return self._thread.name

    def now(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """Makes a call, and waits for its result where the caller stands."""
        return self._submit(call, *arguments, **named).result()

    async def call(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """Makes a call, and lets the event loop go on where it takes longer than `FAST_S`. A cancelled call is not
        waited for."""
        return await _outcome(self._submit(call, *arguments, **named))

    async def close(self, last: Callable[[], Any] | None) -> Any:
        """Ends the thread after a `last` call, which runs to its end even where the caller is cancelled; returns its
        result. A call that still runs is stopped where it can be, and then nothing is waited for: Python code can be
        stopped, a function of a library that is written in C cannot."""
        running = self.busy
        result = self._submit(last) if last is not None else None
        self._ending()
        if running and self._thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(Stopped))
        elif result is not None:
            return await _outcome(result, shielded=True)

    def _submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self._last = result = Future[Any]()
        context = contextvars.copy_context()
        work = _Work(partial(context.run, call, *arguments, **named), result)
        if self._ending.alive:
            self._queue.put(work)
        else:  # the thread has ended
            _make(work)
        return result


async def _outcome(result: Future[Any], shielded: bool = False) -> Any:
    """Returns the result of a call, for which the event loop waits at most `FAST_S` where it stands. A call that is not
    `shielded` and has not begun is dropped where the caller is cancelled."""
    with suppress(TimeoutError):
        result.exception(FAST_S)
    if not result.done():
        waiting = asyncio.wrap_future(result)
        return await (asyncio.shield(waiting) if shielded else waiting)
    error = result.exception()
    try:
        if error is not None:
            raise error  # `result()` would add two frames to its traceback
        return result.result()
    finally:
        del error  # whose traceback would keep this frame, and with it the error


def _serve(queue: SimpleQueue[_Work | None]) -> None:
    """Makes the calls of a queue until it gives None."""
    while True:
        try:
            work = queue.get()
            if work is None:
                return
            _make(work)
        except Stopped:  # it came when the call that it was for had just ended
            continue
        finally:
            work = None  # else the thread would keep the object of the last call


def _make(work: _Work) -> None:
    if not work.result.set_running_or_notify_cancel():
        return
    try:
        value = work.call()
    except StopIteration as error:  # which no coroutine can raise
        work.result.set_exception(RuntimeError(f"a call raised StopIteration: {error}"))
    except BaseException as error:  # SystemExit included: whoever made the call decides
        own = error.__traceback__  # of this function
        work.result.set_exception(error.with_traceback(own.tb_next if own is not None else None))
    else:
        work.result.set_result(value)
