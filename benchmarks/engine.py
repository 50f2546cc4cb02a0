"""Sampling: tokens/s against other engines with the same weights, and against what this machine could do at most.

    pip install llama-cpp-python==0.3.36
    python benchmarks/engine.py [--quick] [--limit seconds]

Each engine has a process of its own; they take turns within each repeat, so that they meet the same noise, and figures
are medians. A cell that takes an engine over `LIMIT_S` at once is left out and says so, as does one that it is
expected to, by its rate on fewer tokens. Decoding is the time of `1 + COUNT` tokens less that of one, for contexts
that share all but their last token. llama.cpp reads fp16 and bf16 files of the weights; after the multi-turn
workload, only the faster of the two goes on.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sojourn.threads import prepare

prepare()  # before torch is imported

import floor  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from contenders import Continuous, Generate, KeptGenerate, Setup, Sojourn, Tokens  # noqa: E402
from llamacpp import LlamaCpp, halves  # noqa: E402
from machine import write  # noqa: E402
from worker import LateError, Worker  # noqa: E402

from sojourn.backends.torch import gguf, models  # noqa: E402
from sojourn.backends.torch.backend import compute_dtype  # noqa: E402

BATCHES, CONTEXTS, COUNT = (1, 8, 16, 32), (512, 2048), 16
PREFILL_BATCHES = (1, 8, 32)
GROUP, TURNS, SHARED, SHOWN, SAID = 8, 8, 400, 60, 16
REPEATS, ENOUGH_S, LIMIT_S, GROUP_LIMIT_S = 3, 12, 40, 150
PROBES = ("The capital of France is", "One, two, three, four,", "Monday, Tuesday, Wednesday,", "A B C D E F G")
Work = Callable[[Worker], float]
BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.0f} s  {text}", file=sys.stderr, flush=True)


class Cell:
    """One piece of work, done by all engines in turn."""

    def __init__(self, name: str, repeats: int) -> None:
        self.name, self.repeats = name, repeats
        self.times: dict[str, list[float]] = {}
        self.without: dict[str, str] = {}

    def run(self, workers: Sequence[Worker], work: Work) -> dict[str, float]:
        """Median seconds of each; the first time warms up, where it is short enough to be done again."""
        for worker in workers:
            self.times[worker.name] = []
        for repeat in range(self.repeats + 1):
            for worker in workers:
                taken = self.times[worker.name]
                if worker.name not in self.without and (not repeat or sum(taken) < ENOUGH_S):
                    self._once(worker, work, taken)
        took = {name: statistics.median(taken[1:] or taken) for name, taken in self.times.items() if taken}
        said = [f"{name} {s:.2f} s" for name, s in took.items()]
        say(f"{self.name}: {', '.join([*said, *(f'{n} {why}' for n, why in self.without.items())])}")
        return took

    def _once(self, worker: Worker, work: Work, taken: list[float]) -> None:
        try:
            taken.append(work(worker))
        except (LateError, RuntimeError) as error:
            self.without[worker.name] = reason(error)


def reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def rates(cell: Cell, took: dict[str, float], tokens: int, floor_s: float) -> dict[str, Any]:
    return {
        "tokens_per_s": {name: round(tokens / s, 1) for name, s in took.items()},
        "floor_tokens_per_s": round(tokens / floor_s, 1),
        "times_the_floor": {name: round(s / floor_s, 2) for name, s in took.items()},
        "measured": {name: max(len(taken) - 1, 1) for name, taken in cell.times.items() if taken},
        **({"left_out": cell.without} if cell.without else {}),
    }


class Comparison:
    """All cells of one run."""

    def __init__(self, workers: Sequence[Worker], costs: floor.Costs, repeats: int, limit_s: float) -> None:
        self.workers, self.costs, self.repeats, self.limit_s = list(workers), costs, repeats, limit_s
        self.rng, self.without = np.random.default_rng(0), dict[str, str]()
        self.primed, self.prefill_rate = dict[str, Tokens](), dict[str, float]()

    def agree(self, prompts: Sequence[Tokens]) -> list[Tokens]:
        """All engines that work here continue the same prompts alike, or nothing is worth comparing."""
        found = {}
        for worker in self.workers:
            try:
                found[worker.name] = worker.ask("greedy", prompts, 8).value
            except (LateError, RuntimeError) as error:
                self.without[worker.name] = reason(error)
        self.keep(found.__contains__)
        first = found["sojourn"]
        for name, said in found.items():
            assert said == first, f"{name} continues with {said}, sojourn with {first}: not the same model"
        say(f"{', '.join(found)} agree on {sum(map(len, first))} tokens")
        return first

    def group(self) -> dict[str, Any]:
        """The multi-turn workload."""
        cell = Cell("multi-turn", self.repeats)
        shared = self._tokens(SHARED)
        shown = self._tokens(GROUP, TURNS, SHOWN)
        took = cell.run(self.workers, lambda w: w.ask("episodes", shared, shown, SAID, limit_s=GROUP_LIMIT_S).seconds)
        computed = SHARED + GROUP * TURNS * SHOWN
        steps = (self.costs.decode(GROUP, SHARED + turn * (SHOWN + SAID) + SHOWN) for turn in range(TURNS))
        floor_s = self.costs.prefill(1) * computed + SAID * sum(steps)
        return {
            "seconds": {name: round(s, 2) for name, s in took.items()},
            "times_sojourn": {name: round(s / took["sojourn"], 2) for name, s in took.items()},
            "floor_s": round(floor_s, 2),
            "times_the_floor": {name: round(s / floor_s, 2) for name, s in took.items()},
            "measured": {name: max(len(taken) - 1, 1) for name, taken in cell.times.items() if taken},
            "left_out": cell.without,
        }

    def keep(self, kept: Callable[[str], bool]) -> None:
        for worker in [w for w in self.workers if not kept(w.name)]:
            worker.close()
            self.workers.remove(worker)

    def decode(self, context: int, batches: Sequence[int]) -> dict[str, Any]:
        prefix = self._tokens(context - 1)
        out = {}
        for batch in batches:
            cell = Cell(f"decode, batch {batch}, context {context}", self.repeats)
            took = cell.run(self.workers, partial(self._decoding, cell, prefix, batch))
            floor_s = COUNT * self.costs.decode(batch, context + COUNT // 2)
            out[f"batch {batch}, context {context}"] = rates(cell, took, batch * COUNT, floor_s)
        return out

    def _decoding(self, cell: Cell, prefix: Tokens, batch: int, worker: Worker) -> float:
        if not cell.times[worker.name]:
            if worker.idle or self.primed.get(worker.name) is not prefix:
                worker.ask("prime", prefix)
                self.primed[worker.name] = prefix
            worker.ask("branch", batch, limit_s=self.limit_s)
        one = worker.ask("more", 1, limit_s=self.limit_s).seconds
        return worker.ask("more", 1 + COUNT, limit_s=one + self.limit_s).seconds - one

    def prefill(self, context: int, batches: Sequence[int]) -> dict[str, Any]:
        out = {}
        for batch in batches:
            cell = Cell(f"prefill, batch {batch}, context {context}", self.repeats)
            took = cell.run(self.workers, partial(self._prefilling, self._tokens(batch, context)))
            floor_s = batch * self.costs.prefill(context)
            out[f"batch {batch}, context {context}"] = rates(cell, took, batch * context, floor_s)
        return out

    def _prefilling(self, prompts: list[Tokens], worker: Worker) -> float:
        """Raises `LateError`, without trying, where the rate so far says so."""
        count = sum(map(len, prompts))
        expected = count / self.prefill_rate.get(worker.name, float("inf"))
        if expected > self.limit_s:
            raise LateError(f"over {self.limit_s:.0f} s expected")
        took = worker.ask("read", prompts, limit_s=2 * self.limit_s).seconds
        self.prefill_rate[worker.name] = count / took
        return took

    def _tokens(self, *shape: int) -> Any:
        return self.rng.integers(1000, 40_000, shape).tolist()


def open_workers(setup: Setup, folder: Path) -> tuple[list[Worker], dict[str, str]]:
    """The engines that can run here, and why others cannot."""
    threads, without = {"OMP_NUM_THREADS": str(setup.threads)}, {}
    named = {
        "sojourn": Sojourn,
        "transformers generate": Generate,
        "transformers generate, cache kept": KeptGenerate,
        "transformers continuous batching": Continuous,
    }
    quiet = threads | {"OMP_WAIT_POLICY": "passive"}  # as `sojourn` sets it
    workers = [Worker(name, partial(kind, setup), quiet) for name, kind in named.items()]
    if importlib.util.find_spec("llama_cpp") is None:
        without["llama.cpp"] = "llama_cpp is not installed"
    elif setup.device != "cpu" and not gpu_llama():
        without["llama.cpp"] = "built without support for a GPU"
    else:
        for kind, file in halves(gguf.packaged(setup.model)[0], folder).items():
            reader = partial(LlamaCpp, setup, file, False)
            workers.append(Worker(f"llama.cpp {kind}", reader, threads))  # its threads wait in their own way
    return workers, without


def gpu_llama() -> bool:
    import llama_cpp

    return bool(llama_cpp.llama_supports_gpu_offload())


def compare(costs: floor.Costs, setup: Setup, prompts: list[Tokens], quick: bool, limit_s: float) -> dict[str, Any]:
    sizes = ((512,), (1, 8)) if quick else (CONTEXTS, BATCHES)
    with tempfile.TemporaryDirectory() as folder:
        workers, without = open_workers(setup, Path(folder))
        comparison = Comparison(workers, costs, 1 if quick else REPEATS, limit_s)
        try:
            agreed = comparison.agree(prompts)
            group = comparison.group()
            llama = {name: s for name, s in group["seconds"].items() if name.startswith("llama.cpp")}
            best = min(llama, key=llama.__getitem__, default="")
            comparison.keep(lambda name: not name.endswith("kept") and (name not in llama or name == best))
            decode, prefill = {}, {}
            for context in sizes[0]:
                decode |= comparison.decode(context, sizes[1])
            for context in sizes[0]:
                prefill |= comparison.prefill(context, [b for b in PREFILL_BATCHES if b in sizes[1]])
        finally:
            comparison.keep(lambda name: False)
    engines: dict[str, Any] = {"agree_on": f"{sum(map(len, agreed))} greedy tokens after {len(agreed)} prompts"}
    engines["without"] = without | comparison.without
    return {"engines": engines, "multi_turn": group, "decode": decode, "prefill": prefill}


def main(quick: bool, limit_s: float) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = compute_dtype("bf16" if device == "cuda" else "auto")
    loaded = models.load("smollm2", {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype])
    machine = floor.measure(dtype, device)
    say(f"{device}, {dtype}: {machine.gflops:.0f} GFLOP/s, {machine.gb_per_s:.1f} GB/s")
    costs = floor.Costs(loaded.model, machine)
    prompts = [loaded.tokenizer.encode(text) for text in PROBES]
    del loaded
    longest = max(*CONTEXTS, SHARED + TURNS * (SHOWN + SAID)) + COUNT + 2
    threads = int(os.environ["OMP_NUM_THREADS"])
    setup = Setup("smollm2", "bf16" if dtype == torch.bfloat16 else "fp32", device, threads, longest, max(BATCHES))
    figures = {
        "model": "SmolLM2-135M, dequantized",
        "setting": {"device": device, "dtype": setup.dtype, "threads": threads, "limit_s": limit_s},
        "workload": {"episodes": GROUP, "turns": TURNS, "shared": SHARED, "shown": SHOWN, "said": SAID},
        "floor": {name: round(value, 1) for name, value in machine._asdict().items()},
        **compare(costs, setup, prompts, quick, limit_s),
    }
    print(write("engine", figures))


if __name__ == "__main__":
    limit = float(sys.argv[sys.argv.index("--limit") + 1]) if "--limit" in sys.argv else LIMIT_S
    main("--quick" in sys.argv, limit)
