"""Prepares a process (torch's thread count, which must be set before torch is imported, freed memory, garbage
collection), and runs work in threads."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# The numbers of mallopt's parameters in <malloc.h>.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
TOP_PAD_BYTES = 256 * 2**20
GC_THRESHOLD = 50_000  # new objects between two runs of Python's garbage collector; reference cycles are rare here


def prepare(threads: int = 0) -> None:
    """Sets the thread count (0: one per core), lets idle threads sleep instead of spinning, keeps freed memory, and
    runs Python's garbage collector less often.

    OpenMP threads that busy-wait on each other become many times slower as soon as another process, such as a
    browser, needs a core. Environment variables that the user has set are not changed.
    """
    count = threads or os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(count))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    _keep_memory()
    gc.set_threshold(GC_THRESHOLD)


def prepare_for(config: Mapping[str, Any]) -> None:
    """Prepares the process for a config, whose `backend.threads` may be wrong still. It comes before any component is
    built, because components may import torch."""
    wanted = config.get("backend", {})
    count = wanted.get("threads", 0) if isinstance(wanted, dict) else 0
    prepare(max(count, 0) if isinstance(count, int) else 0)


def _keep_memory() -> None:
    """Makes the process keep freed memory for the next pass, large blocks included.

    The GNU C library gives large blocks back to the system, which must clear them whenever they are taken again: a
    tenth to a fifth of the time of a training pass (measured: LOG.md). With other C libraries this does nothing.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for option, value in ((ARENA_MAX, 1), (MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, TOP_PAD_BYTES)):
        mallopt(option, value)


async def run_to_end(work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """Runs the work in a thread to its end, even where the caller is cancelled. Use it to close and release resources.

    `asyncio.to_thread` would drop the work where the caller is cancelled before a thread is free.
    """
    import asyncio  # not for every command, which all import this module

    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, partial(work, *args, **kwargs)))
