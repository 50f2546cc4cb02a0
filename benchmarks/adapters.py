"""Several adapters over one base in the sampler's batches: tokens/s beside the base alone, and memory.

    python benchmarks/adapters.py [--quick] [--threads N]

Requests take the base and the adapters in turn; with 0 adapters all are of the base, with 1 all are of the one, with 8
each eighth of one. The kinds take turns within each repeat, so that they meet the same noise, and a ratio is the median
over repeats of the base's time by that of the kind. Decoding is the time of `1 + COUNT` tokens less that of one, after
prompts that are cached; prompts to be read are new in every repeat. `processor` are the same ratios of processor time,
which is what remains comparable where other programs run on the machine.

Memory is what the process holds more once the models are open: n engines of the merged weights each, and n adapters
over one engine, with a cache of `CACHE_GB` each, of which nothing is used yet.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    from sojourn.threads import prepare

    prepare()  # before torch is imported

import numpy as np
import torch
from machine import write

from sojourn.backends.torch.backend import compute_dtype
from sojourn.backends.torch.models import loading
from sojourn.backends.torch.models.adapters import LowRank
from sojourn.backends.torch.sampler.engine import POLICY, Engine
from sojourn.types import Prompt, SamplingParams

MODEL, RANK, COUNTS = "smollm2", 16, (0, 1, 8)
BATCHES, CONTEXT, COUNT = (32, 64), 128, 16
PROMPTS, PROMPT_TOKENS = 8, 256
CACHE_GB, MODELS, KINDS = 0.25, (1, 2, 4, 8), ("engines", "adapters")
Tokens = Sequence[int]


class Took(NamedTuple):
    """Seconds on the clock, and of the processor."""

    clock: float
    processor: float

    def less(self, other: Took) -> Took:
        return Took(self.clock - other.clock, self.processor - other.processor)


def random_adapter(model: Any, seed: int) -> dict[str, LowRank]:
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) / columns**0.5

    return {
        name: LowRank(normal(RANK, module.in_features), 0.1 * normal(module.out_features, RANK))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings()
    }


def open_engine(model: Any, memory_gb: float) -> Engine:
    return Engine(model, stops=(), max_context=512, max_batch=max(BATCHES), memory_bytes=int(memory_gb * 2**30))


async def timed(work: Callable[[], Awaitable[object]]) -> Took:
    clock, processor = time.perf_counter(), time.process_time()
    await work()
    return Took(time.perf_counter() - clock, time.process_time() - processor)


async def ask(engine: Engine, prompts: Sequence[Tokens], adapters: int, count: int) -> None:
    names = [f"adapter {n}" for n in range(adapters)] or [POLICY]
    await asyncio.gather(
        *(
            engine.sample(Prompt(np.array(prompt)), SamplingParams(count, model=names[n % len(names)]))
            for n, prompt in enumerate(prompts)
        )
    )


async def decode(engine: Engine, batch: int, repeats: int) -> dict[str, Any]:
    prompts = np.random.default_rng(batch).integers(1000, 40_000, (batch, CONTEXT)).tolist()
    took: dict[int, list[Took]] = {count: [] for count in COUNTS}
    for repeat in range(repeats + 1):
        for adapters, times in took.items():
            one = await timed(lambda adapters=adapters: ask(engine, prompts, adapters, 1))
            all_ = await timed(lambda adapters=adapters: ask(engine, prompts, adapters, 1 + COUNT))
            if repeat:  # the first computes the prompts
                times.append(all_.less(one))
    return figures(took, batch * COUNT)


async def prefill(engine: Engine, repeats: int) -> dict[str, Any]:
    took: dict[int, list[Took]] = {count: [] for count in COUNTS}
    for repeat in range(repeats):
        for adapters, times in took.items():
            generator = np.random.default_rng((repeat, adapters))
            prompts = generator.integers(1000, 40_000, (PROMPTS, PROMPT_TOKENS)).tolist()
            times.append(await timed(lambda adapters=adapters, prompts=prompts: ask(engine, prompts, adapters, 1)))
    return figures(took, PROMPTS * PROMPT_TOKENS)


def figures(took: dict[int, list[Took]], tokens: int) -> dict[str, Any]:
    found = dict[str, Any]()
    for adapters, times in took.items():
        pairs = list(zip(took[0], times, strict=True))
        found[f"{adapters} adapters"] = {
            "tokens_per_s": round(tokens / statistics.median(one.clock for one in times), 1),
            "of_base": round(statistics.median(base.clock / one.clock for base, one in pairs), 3),
            "of_base_processor": round(statistics.median(base.processor / one.processor for base, one in pairs), 3),
        }
    return found


def resident() -> int:
    """Returns the bytes of memory that this process holds, without what it has freed."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def hold(kind: str) -> list[int]:
    """Opens more and more models; returns the bytes that are held with each number of them."""
    model = loaded()
    adapters = [random_adapter(model, n) for n in range(max(MODELS))]
    before, found, engines = resident(), list[int](), list[Engine]()
    for number, adapter in enumerate(adapters):
        if kind == "engines" or not engines:
            engines.append(open_engine(copy.deepcopy(model), CACHE_GB))
        if kind == "adapters":
            await engines[0].add_adapter(f"adapter {number}", adapter)
        found.append(resident() - before)
    for engine in engines:
        await engine.close()
    return found


def memory() -> dict[str, Any]:
    held = dict[str, list[int]]()
    for kind in KINDS:  # each in a process of its own, so that neither uses what the other freed
        done = subprocess.run([sys.executable, __file__, "--hold", kind], capture_output=True, text=True, check=True)
        held[kind] = json.loads(done.stdout)
    return {
        f"{number} models": {f"{kind}_mib": round(held[kind][number - 1] / 2**20) for kind in KINDS}
        for number in MODELS
    }


def loaded() -> Any:
    model = loading.load(MODEL, "fp32", 0, "").model.requires_grad_(False)
    return model.to(compute_dtype("auto", torch.device("cpu")))


async def measure(repeats: int) -> dict[str, Any]:
    model = loaded()
    found: dict[str, Any] = {
        "model": MODEL,
        "dtype": str(model.dtype),
        "rank": RANK,
        "threads": torch.get_num_threads(),
    }
    found["memory"] = memory()
    print(found["memory"], flush=True)
    engine = open_engine(model, 2.0)
    for number in range(max(COUNTS)):
        await engine.add_adapter(f"adapter {number}", random_adapter(model, number))
    for batch in BATCHES:
        found[f"decode, batch {batch}, context {CONTEXT}"] = await decode(engine, batch, repeats)
        print(batch, found[f"decode, batch {batch}, context {CONTEXT}"], flush=True)
    found[f"prefill, {PROMPTS} prompts of {PROMPT_TOKENS} tokens"] = await prefill(engine, repeats)
    await engine.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats, and nothing is written")
    parser.add_argument("--threads", type=int, default=0, help="of torch (0: as it is)")
    parser.add_argument("--hold", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        print(json.dumps(asyncio.run(hold(options.hold))))
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    found = asyncio.run(measure(2 if options.quick else 9))
    print(found if options.quick else write("adapters", found))


if __name__ == "__main__":
    main()
