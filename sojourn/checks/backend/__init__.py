"""Checks whether a backend keeps its promises: `check_backend` samples from a tiny model, trains it, and judges each
one.

The sampler and the trainer must be two views of one model, and `publish` the only way from one to the other. Models of
other architectures, long contexts and behaviour under load are not checked.
"""

from __future__ import annotations

import asyncio
from typing import Any

from sojourn.checks.backend import sampling, training
from sojourn.checks.backend.opened import Case
from sojourn.checks.left_running import left_running, running
from sojourn.checks.promise import BrokenError, Promise, judge_all_awaited
from sojourn.checks.report import Report
from sojourn.models.spec import Model


async def check_backend(backend: Any, model: Model | None = None, *, timeout_s: float = 120.0) -> Report:
    """Returns the verdicts on a backend component, such as `Torch()`; each promise has `timeout_s`.

    The model must compute in fp32: the tolerances are tight.
    """
    case = Case(backend, model or Model(name="tiny:layers=1,hidden=64", dtype="fp32"), running())
    try:
        return Report(type(backend).__name__, await judge_all_awaited(PROMISES, case, timeout_s))
    finally:
        await case.close()


async def _opens(case: Case) -> str:
    case.open()
    return case.model.name


async def _closes(case: Case) -> str:
    await case.close()
    if left := await left_running({*case.before, asyncio.current_task()}):
        raise BrokenError(f"after close() there still runs {left[0]} ({len(left)} in all)")
    return "nothing is left running"


OPEN = ("it opens",)
SOUND = (*OPEN, "samples are what was asked for")
PROMISES = (
    Promise(OPEN[0], (), _opens),
    Promise(SOUND[1], OPEN, sampling.samples),
    Promise("the same seed gives the same tokens", SOUND, sampling.seeded),
    Promise("sampler and trainer agree", SOUND, sampling.agrees),
    Promise("scores agree with sampling", SOUND, sampling.scores),
    Promise("only publish changes the sampler", (*SOUND, "the same seed gives the same tokens"), training.publishes),
    Promise("a divided batch gives the same update", SOUND, training.splits),
    Promise("saved state is restored", SOUND, training.saves),
    Promise("it closes", (), _closes),
)
