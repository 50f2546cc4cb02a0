"""Torch's threads, which must be decided before torch is imported, the process's memory, and work given to threads."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# As <malloc.h> numbers them.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
AHEAD = 256 * 2**20
YOUNG = 50_000  # objects made before Python looks for garbage among them; it is made in cycles seldom here


def prepare(threads: int = 0) -> None:
    """Sets the thread count (0: one per core), lets idle threads sleep instead of spinning, keeps memory, and lets
    Python look for garbage less often.

    OpenMP threads that busy-wait on each other become many times slower as soon as another process, such as a
    browser, wants a core. What the user has set in the environment stays.
    """
    count = threads or os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(count))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    _keep_memory()
    gc.set_threshold(YOUNG)


def _keep_memory() -> None:
    """Freed memory stays with the process, for the next pass: no block is the system's own.

    The GNU C library gives large blocks back to the system, which must clear them whenever they are taken again: a
    tenth to a fifth of the time of a training pass (measured: LOG.md). Elsewhere, nothing is done.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for option, value in ((ARENA_MAX, 1), (MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, AHEAD)):
        mallopt(option, value)


async def surely(work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """Does the work in a thread, also where whoever waits for it is cancelled: for what closes or gives back.

    `asyncio.to_thread` drops work that is cancelled while it still queues for a thread.
    """
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, partial(work, *args, **kwargs)))
