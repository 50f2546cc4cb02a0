"""A contender in a process of its own: its threads and memory disturb no other, and what takes too long is ended."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

OPENING_S = 120


class LateError(Exception):
    """It took longer than allowed, and was ended."""


class Answer(NamedTuple):
    seconds: float
    value: Any


def serve(open_: Callable[[], Any], calls: Connection) -> None:
    """Opens a contender and does what it is told, until it is told nothing more."""
    contender = open_()
    calls.send(Answer(0.0, None))
    while (call := calls.recv()) is not None:
        method, arguments = call
        began = time.perf_counter()
        value = getattr(contender, method)(*arguments)
        calls.send(Answer(time.perf_counter() - began, value))
    contender.close()


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """For the processes that start within; None takes away what is set here."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update({name: value for name, value in {**before, **values}.items() if value is not None})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass(eq=False)
class Worker:
    """`ask("method", ...)` returns how long it took; the process starts at the first, and again after a late one."""

    name: str
    open_: Callable[[], Any]
    environ: Mapping[str, str | None]
    opening_s: float = OPENING_S
    _process: Any = field(default=None, init=False)
    _calls: Any = field(default=None, init=False)

    @property
    def idle(self) -> bool:
        """Returns whether no process is there, so that nothing said before is remembered."""
        return self._process is None

    def ask(self, method: str, *arguments: Any, limit_s: float = OPENING_S) -> Answer:
        """Raises `LateError` where the answer is not there in time, `RuntimeError` where the contender fails."""
        if self._process is None:
            self._start()
        self._calls.send((method, arguments))
        return self._answer(limit_s)

    def close(self) -> None:
        if self._process is not None:
            with suppress(OSError):
                self._calls.send(None)
            self._process.join(15)
        self._end()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._calls, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(self.open_, theirs), daemon=True)
        with environment(self.environ):
            self._process.start()
        theirs.close()
        self._answer(self.opening_s)

    def _answer(self, limit_s: float) -> Answer:
        if not self._calls.poll(limit_s):
            self._end()
            raise LateError(f"{self.name}: over {limit_s:.0f} s")
        try:
            return self._calls.recv()
        except EOFError:
            self._end()
            raise RuntimeError(f"{self.name} failed: see its message above") from None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._calls.close()
            self._process = None
