"""Starts Ray for tests, and actors of its backend wherever it has room, without places that are reserved for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import forking
import ray
import spawned

from sojourn.backends.ray.cluster import SETTINGS
from sojourn.backends.ray.env_worker import EnvWorker
from sojourn.backends.ray.trainer_rank import TrainerRank

forking.fork_workers()
VARIABLES = {**SETTINGS, "RAY_AUTH_MODE": "disabled", "RAY_memory_monitor_refresh_ms": "0"}  # of Ray, in tests


@contextmanager
def started(cpus: int) -> Iterator[Any]:
    """Runs Ray on this machine, with so many processors to give away, unless another test of this process runs it."""
    if ray.is_initialized():
        yield ray
        return
    os.environ |= {**VARIABLES, forking.SOCKET: spawned.server_of(os.environ)}
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def make_ranks(count: int, threads: int = 0) -> list[Any]:
    """Starts the actors of `count` trainer ranks."""
    kind: Any = ray.remote(TrainerRank).options(max_restarts=0, num_cpus=1)
    return [kind.remote(threads) for _ in range(count)]


def start_anywhere(cpus: float) -> Callable[..., Any]:
    """Returns what starts environment workers, each where the cluster has `cpus` left for it."""

    def start(number: int, *arguments: Any) -> Any:
        options: dict[str, Any] = {"num_cpus": 0 if number < 0 else cpus, "max_restarts": -1, "max_task_retries": 0}
        return ray.remote(EnvWorker).options(**options, max_concurrency=100_000).remote(*arguments)

    return start
