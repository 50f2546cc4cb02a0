"""What a trainer's rank that holds a part of the model takes in memory to begin and to publish.

    python benchmarks/rank_memory.py [--model smollm2] [--ranks 2 4] [--dry]

Ranks in actors of a local Ray cluster (gloo, CPU) load a model, once as it was done before (`whole`: all of it in each
rank, then divided) and once tensor by tensor (`parts`), and then gather it as they do to publish. They do so from files
of fp32, which is also the type in which they train, and of bf16, in which most models come. Everything that these
import is imported first, by a tiny model. Figures are of the rank that took most, in millions of bytes: `held`, its
parts of the weights; `largest`, the largest tensor; `peak_rss` and `peak_anonymous`, by how much the process grew at
most while it loaded (looked at every 2 ms), with the pages of the model's files that it had read, and without them;
`peak_publish`, `held` and the most that torch's allocator gave out beside it while the rank gathered all weights.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from machine import write

from sojourn.backends.ray.cluster import Cluster, Needs, imported
from sojourn.backends.ray.trainer_rank import Place, TrainerRank
from sojourn.backends.torch.backend import Torch
from sojourn.backends.torch.models import loading
from sojourn.models.spec import Model

TORCH = Torch(device="cpu", threads=1)
MEGABYTE = 1e6


class Grown(NamedTuple):
    """Holds by how many bytes a process grew at most: what torch's allocator gave out, and what the system counts."""

    allocated: int
    rss: int
    anonymous: int


class Measure:
    """Measures how much memory a block takes at most."""

    def __init__(self) -> None:
        self.grown = Grown(0, 0, 0)

    @contextmanager
    def during(self) -> Iterator[None]:
        from torch.profiler import ProfilerActivity, profile

        gc.collect()
        began, seen, ended = _resident(), [_resident()], threading.Event()

        def watch() -> None:
            while not ended.wait(0.002):
                seen.append(_resident())

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
                yield
        finally:
            ended.set()
            watching.join()
        events: Any = profiled.profiler
        changes = [one.nbytes() for one in events.kineto_results.events() if one.name() == "[memory]"]
        most, now = 0, 0
        for change in changes:
            now += change
            most = max(most, now)
        grown = [max(one[n] for one in seen) - began[n] for n in range(2)]
        self.grown = Grown(most, *grown)


def _resident() -> tuple[int, int]:
    """Returns the bytes of this process that are in memory, and those of them that no file holds."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(lines[key].split()[0]) * 1024 for key in ("VmRSS", "RssAnon"))  # type: ignore[return-value]


def measured(rank: TrainerRank, place: Place, model: Model, defer: bool) -> dict[str, float]:
    """Opens a trainer in a rank, and returns what it took."""
    import torch

    if place.size and rank._team is None:
        rank._rank = place.rank
        rank._join(place, torch.device("cpu"))

    async def nowhere(weights: Any, version: int) -> None: ...

    def opened(model: Model) -> Any:
        return TORCH.open_trainer(TORCH.load(model, 0, defer=defer), model, 0, nowhere, team=rank._team)

    warm = opened(Model(name="tiny:layers=1,hidden=64", dtype="fp32"))
    deque(warm.weights(), maxlen=0)
    warm.close()
    del warm
    load, publish = Measure(), Measure()
    with load.during():
        began = time.perf_counter()
        trainer = opened(model)
        seconds = time.perf_counter() - began
    parts = [parameter.to_local() for parameter in trainer.model.parameters()]  # pyright: ignore[reportCallIssue]
    held = sum(part.nbytes for part in parts)
    with publish.during():
        deque(trainer.weights(), maxlen=0)
    largest = max(4 * parameter.numel() for parameter in trainer.model.parameters())
    trainer.close()
    return {
        "held": held / MEGABYTE,
        "largest": largest / MEGABYTE,
        "peak_publish": (held + publish.grown.allocated) / MEGABYTE,
        "peak_rss": load.grown.rss / MEGABYTE,
        "peak_anonymous": load.grown.anonymous / MEGABYTE,
        "seconds": seconds,
    }


def in_ranks(
    count: int, work: Callable[..., dict[str, float]], *args: Any, shard: bool = False, context: int = 1
) -> dict[str, float]:
    """Returns the greatest figures of so many ranks in which `work(rank, place, *args)` is done."""
    ray = imported()
    needs = Needs(what="trainer ranks", count=count, cpus=0.0, gpus=0.0)
    cluster = Cluster.join("", [needs]).hold()
    try:
        actors = [cluster.actor(TrainerRank, needs, n, 1, restarts=0, concurrency=1) for n in range(count)]
        host, port = ray.get(actors[0].listen.remote(count))
        places = [Place(rank, count, shard, context, host, port) for rank in range(count)]
        begun = zip(actors, places, strict=True)
        found = ray.get([actor.__ray_call__.remote(work, place, *args) for actor, place in begun])
    finally:
        cluster.release()
    return {key: round(max(one[key] for one in found), 1) for key in found[0]}


def in_bf16(name: str, folder: str) -> str:
    """Saves a model in bf16."""
    loaded = loading.load(name, "bf16")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--dry", action="store_true", help="measure a tiny model in two ranks, write nothing")
    options = parser.parse_args(words)
    named, counts = ("tiny", [2]) if options.dry else (options.model, options.ranks)
    figures: dict[str, Any] = {"model": named}
    with tempfile.TemporaryDirectory() as folder:
        for stored, name in {"fp32": named, "bf16": in_bf16(named, folder)}.items():
            for count in counts:
                for way, defer in {"whole": False, "parts": True}.items():
                    key = f"{stored}_{count}_ranks_{way}"
                    figures[key] = in_ranks(count, measured, Model(name=name, dtype="fp32"), defer, shard=True)
                    print(key, figures[key], flush=True)
    if not options.dry:
        print(write("rank_memory", figures, "ray"))


if __name__ == "__main__":
    main()
