"""Runs passes side by side, each on its share of the cores.

Two products of one thread each end sooner than the same two, one after the other, on two threads (measured: LOG.md):
no half waits for the other, and the passes lose less when something else wants a core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from sojourn.backends.torch.kernels.compiler import loaded, openmp

T = TypeVar("T")
MAX_WORKERS = 4  # more would cost: a prefix that several micro-batches share is computed by each of them


class WorkerPool:
    """`count` threads, each with an equal share of OpenMP's; a single one where the cores cannot be shared out."""

    def __init__(self, device: torch.device) -> None:
        cores = torch.get_num_threads()
        shared = device.type == "cpu" and openmp() is not None
        self.count = max(n for n in range(1, MAX_WORKERS + 1) if cores % n == 0) if shared else 1
        self._cores = cores // self.count
        self._pool = ThreadPoolExecutor(self.count, "trainer-pool", self._settle) if self.count > 1 else None

    def run(self, works: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Yields each work's result, in order, as soon as it is there; raises what the first that fails raises.

        A work begins only while few results wait to be taken, so that few are kept at once.
        """
        if self._pool is None or len(works) == 1:
            yield from (work() for work in works)
            return
        begun: deque[Future[T]] = deque()
        try:
            for work in works:
                begun.append(self._pool.submit(work))
                if len(begun) > self.count:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            wait(begun)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _settle(self) -> None:
        """Limits the threads that torch and MKL use in the calling thread."""
        torch.get_num_threads()  # torch sets its own number when a thread first asks
        openmp().omp_set_num_threads(self._cores)
        products = loaded("libtorch_cpu")
        if hasattr(products, "MKL_Set_Num_Threads_Local"):  # else MKL obeys what `torch.set_num_threads` told it
            products.MKL_Set_Num_Threads_Local(self._cores)
