"""Torch's threads, which must be decided before torch is imported."""

from __future__ import annotations

import os
import sys


def prepare(threads: int = 0) -> None:
    """Sets the thread count (0: one per core) and lets idle threads sleep instead of spinning.

    OpenMP threads that busy-wait on each other become many times slower as soon as another process, such as a
    browser, wants a core. What the user has set in the environment stays.
    """
    count = threads or os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(count))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
