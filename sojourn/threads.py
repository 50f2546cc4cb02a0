"""Sets the number of torch's threads, which must happen before torch is imported, and how the process keeps memory;
runs work in threads."""

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
TOP_PAD_BYTES = 256 * 2**20
GC_THRESHOLD = 50_000  # new objects between two runs of Python's garbage collector; cycles are rare here


def prepare(threads: int = 0) -> None:
    """Sets the thread count (0: one per core), lets idle threads sleep instead of spinning, keeps freed memory, and
    runs Python's garbage collector less often.

    OpenMP threads that busy-wait on each other become many times slower as soon as another process, such as a
    browser, wants a core. Variables that the user has set in the environment stay.
    """
    count = threads or os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(count))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    _keep_memory()
    gc.set_threshold(GC_THRESHOLD)


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


async def surely(work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """Runs the work in a thread to its end, even if the caller is cancelled: for closing and releasing resources.

    `asyncio.to_thread` drops work that is cancelled while it still queues for a thread.
    """
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, partial(work, *args, **kwargs)))
