"""Checks that plays can be cancelled at every await, as a stalled world, a stopped run or a failure elsewhere does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

from sojourn.checks.env.play import Case, Play, closing, require_equal, short, spread
from sojourn.checks.promise import BrokenError, guarded

MAX_CANCELLED_AWAITS = 8  # the most awaits of one call at which a play is cancelled
STOP_TIMEOUT_S = 30.0  # as long as the start of a program, which is not interrupted, may take on a busy machine


class CancelAtAwait:
    """Awaits a coroutine and cancels its task when it waits for the `at`-th time (0: never)."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int = 0) -> None:
        self.coroutine = coroutine
        self.at = at
        self.waits = 0
        self.reached = asyncio.get_running_loop().create_future()

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        while True:
            try:
                waited_for = self.coroutine.send(None) if thrown is None else self.coroutine.throw(thrown)
            except StopIteration as ended:
                return ended.value
            self.waits += 1
            task = asyncio.current_task()
            if self.waits == self.at and task is not None:
                task.cancel()  # as soon as it waits
                self.reached.set_result(None)
            try:
                yield waited_for
                thrown = None
            except BaseException as error:
                thrown = error


async def cancellable(case: Case) -> str:
    """Cancels the start, the first action and one in the middle, each at several awaits."""
    turns = sorted({0, 1, len(case.plays[0].actions) // 2})
    cancellations = 0
    for turn in turns:
        waits = await _play(case, turn)
        for at in spread(waits - 1, MAX_CANCELLED_AWAITS) if waits else ():
            if left := await case.leak(lambda turn=turn, at=at: _play(case, turn, at + 1)):
                raise BrokenError(f"cancelled at await {at + 1} of {_call(turn)} and closed, it leaves {left}")
            cancellations += 1
    require_equal(case.plays[0].events, await case.replay(0), "after plays that were cancelled")
    return f"cancelled at {cancellations} awaits, it stops and leaves nothing" if cancellations else "it never waits"


async def _play(case: Case, turn: int, at: int = 0) -> int:
    """Plays up to a turn (0: the start) and cancels it at an await; returns how often that turn waits."""
    async with closing(Play(case.family.make(case.tasks[0]))) as play:
        if turn:
            await play.start()
            await play.act_all(case.plays[0].actions[: turn - 1])
        awaited = CancelAtAwait(play.act(case.plays[0].actions[turn - 1]) if turn else play.start(), at)
        task = asyncio.ensure_future(guarded(awaited))
        await _until_stopped(task, awaited.reached)
        if not awaited.reached.done():
            task.result()
        elif not task.cancelled():
            raise BrokenError(f"cancelled in {_call(turn)}, it went on, with {short(task.exception() or 'a result')}")
    return awaited.waits


async def _until_stopped(task: asyncio.Future[Any], reached: asyncio.Future[None]) -> None:
    try:
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({task}, timeout=STOP_TIMEOUT_S)
    finally:
        task.cancel()
    if not task.done():
        raise BrokenError(f"a cancelled play did not stop within {STOP_TIMEOUT_S:g} s")


def _call(turn: int) -> str:
    return f"action {turn}" if turn else "start()"
