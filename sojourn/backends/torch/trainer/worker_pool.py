"""Runs passes in parallel, each on its share of the cores.

Two products that run in parallel on one thread each end sooner than the same two, one after the other, on two threads
(measured: LOG.md): no thread waits for the other, and the passes lose less when another process needs a core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from sojourn.backends.torch.kernels.compiler import loaded_library, openmp

T = TypeVar("T")
MAX_WORKERS = 4  # more would cost too much: a prefix that several micro-batches share is computed in each of them


class WorkerPool:
    """`count` workers, each with an equal share of the cores for OpenMP; a single one where the cores cannot be
    divided."""

    def __init__(self, device: torch.device) -> None:
        cores = torch.get_num_threads()
        shared = device.type == "cpu" and openmp() is not None
        self.count = max(n for n in range(1, MAX_WORKERS + 1) if cores % n == 0) if shared else 1
        self._cores = cores // self.count
        self._pool = ThreadPoolExecutor(self.count, "trainer-pool", self._limit_threads) if self.count > 1 else None

    def run(self, tasks: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Yields each task's result, in order, as soon as it is available; raises the exception of the first that
        fails.

        A task begins only while few results wait to be taken, so that few are in memory at once.
        """
        if self._pool is None or len(tasks) == 1:
            yield from (task() for task in tasks)
            return
        begun: deque[Future[T]] = deque()
        try:
            for task in tasks:
                begun.append(self._pool.submit(task))
                if len(begun) > self.count:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            wait(begun)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _limit_threads(self) -> None:
        """Limits the threads that torch and MKL use in the calling thread."""
        torch.get_num_threads()  # torch sets its own number when a thread first calls this
        openmp().omp_set_num_threads(self._cores)
        products = loaded_library("libtorch_cpu")
        if hasattr(products, "MKL_Set_Num_Threads_Local"):  # without it, MKL uses the number of `torch.set_num_threads`
            products.MKL_Set_Num_Threads_Local(self._cores)
