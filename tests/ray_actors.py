"""Starts actors of the Ray backend wherever a cluster has room, without places that are reserved for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray

from sojourn.backends.ray.env_worker import EnvWorker
from sojourn.backends.ray.trainer_rank import TrainerRank


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
