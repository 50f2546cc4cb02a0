"""Plays that are cancelled wherever they wait: by a stalled world, a stopped run, a failure beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

from sojourn.checks.env.play import Case, Play, closing, require_equal, short, spread
from sojourn.checks.promise import BrokenError, guarded

MOST = 8  # awaits of one call at which it is cancelled
STOPS_S = 10.0


class Cut:
    """Awaits a coroutine, and has its task cancelled where it waits for the n-th time (0: nowhere)."""

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
    """The start, the first action and one in the middle."""
    turns = sorted({0, 1, len(case.plays[0].actions) // 2})
    cuts = 0
    for turn in turns:
        waits = await _play(case, turn)
        for at in spread(waits - 1, MOST) if waits else ():
            if left := await case.leak(lambda turn=turn, at=at: _play(case, turn, at + 1)):
                raise BrokenError(f"cancelled at await {at + 1} of {_call(turn)} and closed, it leaves {left}")
            cuts += 1
    require_equal(case.plays[0].events, await case.replay(0), "after plays that were left and cancelled")
    return f"cancelled at {cuts} awaits, it stops and leaves nothing" if cuts else "it never waits"


async def _play(case: Case, turn: int, at: int = 0) -> int:
    """Plays to a turn (0: the start) and cancels that at an await; says how often that waits."""
    async with closing(Play(case.family.make(case.tasks[0]))) as play:
        if turn:
            await play.start()
            await play.act_all(case.plays[0].actions[: turn - 1])
        cut = Cut(play.act(case.plays[0].actions[turn - 1]) if turn else play.start(), at)
        task = asyncio.ensure_future(guarded(cut))
        await _until_stopped(task, cut.reached)
        if not cut.reached.done():
            task.result()
        elif not task.cancelled():
            raise BrokenError(f"cancelled in {_call(turn)}, it went on, with {short(task.exception() or 'a result')}")
    return cut.waits


async def _until_stopped(task: asyncio.Future[Any], reached: asyncio.Future[None]) -> None:
    try:
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({task}, timeout=STOPS_S)
    finally:
        task.cancel()
    if not task.done():
        raise BrokenError(f"a cancelled play did not stop within {STOPS_S:g} s")


def _call(turn: int) -> str:
    return f"action {turn}" if turn else "start()"
