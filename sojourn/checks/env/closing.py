"""What a world leaves behind when it is closed or cancelled."""

from __future__ import annotations

import asyncio

from sojourn.checks.env.play import Case, Play, require_equal, short, whole
from sojourn.checks.promise import BrokenError
from sojourn.checks.running import left_running, running

PAUSES_S = (0, 0, 0, 0.001, 0.005, 0.02, 0.1)  # after how much of a play it is cancelled, added up


async def closes(case: Case) -> str:
    unused = case.family.make(case.tasks[0])
    await unused.close()  # before any start
    await (await case.replay(0)).env.close()  # warms up whatever the family shares
    before = running()
    for turns in (1, None):
        play = await case.replay(0, turns)
        await play.env.close()
        await play.env.close()
    if left := await left_running(before):
        raise BrokenError(f"after close() there still runs {left[0]} ({len(left)} in all)")
    return "at any time, twice, and nothing is left running"


async def cancellable(case: Case) -> str:
    before = running()
    for count in range(len(PAUSES_S) + 1):
        play = Play(case.family.make(case.tasks[0]))
        task = asyncio.ensure_future(whole(play, case.plays[0].actions))
        for pause_s in PAUSES_S[:count]:
            await asyncio.sleep(pause_s)
        finished = task.done()
        task.cancel()
        await asyncio.wait({task}, timeout=10)
        if not task.done():
            raise BrokenError("a cancelled play did not stop within 10 s")
        if not finished and not task.cancelled():
            raise BrokenError(f"a cancelled play went on, and ended with {short(task.exception() or 'its result')}")
        await play.env.close()
        if finished:
            break
    again = await case.replay(0)
    await again.env.close()
    require_equal(case.plays[0].events, again.events, "after cancelled plays")
    if left := await left_running(before):
        raise BrokenError(f"after a cancelled play and close() there still runs {left[0]}")
    return "at every await tried"
