"""The latency of `live.py`: the time to a reply while training runs and while its process is stopped, in turns."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import numpy as np
from live_population import AT_ONCE, Population
from live_service import Service

TURNS, SECONDS, SETTLING_S = 20, 5.0, 0.5  # turns in all, how long each is, and what is left out after a change
ENOUGH = 1_000_000  # sessions
BEGUN = 2  # steps that are trained before the measurement begins


async def paused_and_running(service: Service, seed: int) -> dict[str, Any]:
    """Returns percentiles of the seconds to a reply, and their ratios. People come faster than training takes their
    sessions, as it plays a large panel after each step: so it is at work whenever it may run."""
    people = Population(service.base_url, seed, ENOUGH, ENOUGH)
    load = asyncio.create_task(people.live())
    while _steps(service) < BEGUN and not load.done():  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    trainer, turns, steps = service.trainer(), list[tuple[float, float, bool]](), list[int]()
    try:
        for number in range(TURNS):
            runs = number % 2 == 0
            os.kill(trainer, signal.SIGCONT if runs else signal.SIGSTOP)
            steps.append(_steps(service))
            began = time.monotonic() + SETTLING_S
            await asyncio.sleep(SETTLING_S + SECONDS)
            turns.append((began, time.monotonic(), runs))
        waiting = service.waiting()
    finally:
        os.kill(trainer, signal.SIGCONT)
        people.sessions = 0  # nobody begins another
        await load
    seconds = {
        runs: np.array(
            [
                took
                for one in people.talked
                for at, took in one.seconds
                if any(first <= at and at + took <= last and state == runs for first, last, state in turns)
            ]
        )
        for runs in (True, False)
    }
    found: dict[str, Any] = {"replies": {"running": len(seconds[True]), "paused": len(seconds[False])}}
    for percent in (50, 95):
        running, paused = (float(np.percentile(seconds[runs], percent)) for runs in (True, False))
        found |= {f"p{percent}_running_s": running, f"p{percent}_paused_s": paused}
        found[f"p{percent}_ratio"] = running / paused
    trained = sum(last - first for first, last in zip(steps[::2], steps[1::2], strict=True))
    return found | {"steps_trained": trained, "waiting_at_end": waiting, "at_once": AT_ONCE}


def _steps(service: Service) -> int:
    """Returns how many steps have taken sessions."""
    return len({one.step for one in service.store.sessions(1_000_000) if one.step is not None})
