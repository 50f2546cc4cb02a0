"""Requests to replicas of a sampler, other weights for them, and how to wait and to kill, for tests."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.backends.ray.samplers import BLOCK
from sojourn.types import Prompt, Sample, SamplingParams

REQUESTS = 12


def changed(weights: Mapping[str, Any], by: float = 0.05) -> dict[str, Any]:
    """Returns other weights."""
    return {name: w + by * (w * 0 + 1).flatten().cumsum(0).sin().view(w.shape) for name, w in weights.items()}


def prompt(number: int, length: int = 2 * BLOCK + 5) -> Prompt:
    return Prompt(np.random.default_rng(number).integers(20, 120, length))


def params(seed: int, tokens: int = 16, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, seed=seed, **more)


async def sampled(sampler: Any, count: int = REQUESTS, tokens: int = 16) -> list[Sample]:
    """Returns samples of several prompts, of two seeds each, all asked for at once."""
    return await asyncio.gather(*(sampler.sample(prompt(n // 2), params(n, tokens)) for n in range(count)))


def same(one: list[Sample], other: list[Sample]) -> bool:
    return all(
        np.array_equal(a.tokens, b.tokens) and np.array_equal(a.logprobs, b.logprobs)
        for a, b in zip(one, other, strict=True)
    )


def pid(ray: Any, actor: Any) -> int:
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


@contextmanager
def stopped(*processes: int) -> Iterator[None]:
    """Stops processes, so that none of them answers; they go on, unless they were killed meanwhile."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


async def a_moment() -> None:
    """Lets requests that were made be sent, and no answer come, if those who were asked take a moment, too."""
    for _ in range(5):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool], seconds: float = 60.0, pause_s: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(pause_s)


def processes_of(folder: str) -> list[int]:
    """Returns the processes that were started with a folder for Ray's files, which its processes inherit."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if folder.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_for_their_end(folder: str, seconds: float = 180.0) -> None:
    """Ray's agents try for 60 s to tell of their end, where nobody listens any more."""
    deadline = time.monotonic() + seconds
    while left := processes_of(folder):
        assert time.monotonic() < deadline, [(Path("/proc") / str(one) / "cmdline").read_text() for one in left]
        time.sleep(0.5)
