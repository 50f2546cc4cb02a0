"""Compares credit-assignment methods on one world: equal episodes, the same warm starts, tasks and held-out panel.

    python benchmarks/credit.py                                    # all; about an hour and a half on two cores
    python benchmarks/credit.py --methods grpo,gigpo --seeds 0,1   # some, in the work folder alone
    python benchmarks/credit.py --plot                             # draws the picture again, from the figures
    python benchmarks/credit.py --dry                              # builds every recipe, runs nothing

The world, the model and the loop are those of `credit.toml`. For each seed a model is cloned once, by
`credit_warmup.toml`; every method goes on from there, on the tasks that the seed decides. The learning rate and the
number of updates of a step were chosen with GRPO on a seed that is not among these, for no other method: that may
favour it. A method differs from GRPO in its estimator or in its losses alone, with the constants of `recipes/presets`;
how tokens are averaged is the same for all but Dr. GRPO, of which it is half.

Every training is a process of its own, on one thread. What is finished stays in `--folder`: a killed bake-off goes on,
and what has another recipe now is done again. Only the whole bake-off writes to `results`.

Intervals are Student's t over seeds, 95%; differences to GRPO are paired by seed. Of twenty such intervals one leaves
out the truth by chance.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from credit_plot import draw
from machine import RESULTS, commit, result, write

from sojourn import intervals
from sojourn.abilities import group_size
from sojourn.config import toml
from sojourn.record import metrics
from sojourn.record.run import RunFolder
from sojourn.train.resolve import resolve

HERE = Path(__file__).parent
WARMUP = "warmup"
FIGURES = "figures.json"
BASE = "grpo"  # what the others are compared with
SEEDS = range(5)
RL_SEED = 1000  # so that no method trains on the tasks that were cloned
ENTROPY = [{"name": "entropy"}]


def whitened(base: dict[str, Any]) -> dict[str, Any]:
    """Returns the method with advantages of standard deviation 1, as GRPO's are, so that one learning rate fits
    both."""
    return {"name": "whitened", "base": base}


VALUES = [{"name": "values"}, {"name": "next_values"}]
CRITIC = {"critic": {"optim": {"lr": 1e-3}}, "losses": [{"name": "ppo"}, {"name": "value", "coef": 0.5}]}

METHODS: dict[str, dict[str, Any]] = {  # what each has instead of `credit.toml`'s, which is GRPO
    "grpo": {},
    "reinforce": {"estimator": {"name": "reinforce"}},
    "rloo": {"estimator": {"name": "rloo"}},
    "dr_grpo": {"estimator": {"scale_by_std": False}, "aggregate": {"by": "constant", "length": 160}},
    "opo": {"estimator": {"name": "opo"}},
    "stratified": {"estimator": {"name": "stratified"}},
    "gigpo": {"estimator": {"name": "gigpo"}},
    "eapo": {"estimator": {"name": "eapo"}},
    "aem": {"estimator": {"name": "aem"}, "streams": ENTROPY},
    "empg": {"estimator": {"name": "empg"}, "streams": ENTROPY},
    "cispo": {"losses": [{"name": "cispo"}]},
    "sapo": {"losses": [{"name": "sapo"}]},
    "gspo_turn": {"losses": [{"name": "gspo", "level": "turn"}]},
    "gae": {"estimator": whitened({"name": "gae", "bootstrap": False}), "streams": VALUES, **CRITIC},
    "turn_gae": {
        "estimator": whitened({"name": "turn_gae", "discount": 1.0, "bootstrap": False}),
        "streams": VALUES,
        **CRITIC,
    },
    "progress": {
        "estimator": whitened({"name": "process", "stream": "progress", "outcome_coef": 0.0}),
        "streams": [{"name": "progress"}],
    },
    "archer": {
        "estimator": whitened({"name": "archer"}),
        "streams": [{"name": "utterance_advantage", "discount": 1.0, "warmup": 2}],
    },
}


class Job(NamedTuple):
    method: str  # or WARMUP
    seed: int

    def place(self, folder: Path) -> Path:
        return folder / f"seed-{self.seed}" / self.method

    def tables(self, folder: Path) -> toml.Tables:
        """The whole recipe, and where its values come from."""
        if self.method == WARMUP:
            tables = toml.read(HERE / "credit_warmup.toml")
            tables.merge({"seed": self.seed}, "the bake-off")
            return tables
        tables = toml.read(HERE / "credit.toml")
        warm = Job(WARMUP, self.seed).place(folder) / "run"
        tables.merge({"seed": RL_SEED + self.seed, "model": {"weights": str(warm)}}, "the bake-off")
        tables.merge(METHODS[self.method], self.method)
        return tables


# -- one training


def run(job: Job, folder: Path) -> dict[str, Any]:
    """The figures of one training: those that are there, where they are of the same recipe, else made now."""
    place, table = job.place(folder), job.tables(folder).data
    wanted = {"recipe": table, "warmup": Job(WARMUP, job.seed).tables(folder).data}
    if (place / FIGURES).exists():
        found = json.loads((place / FIGURES).read_text())
        if {name: found[name] for name in wanted} == wanted:
            return found
    place.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{job.method}-", dir=place.parent))  # what is at its place is finished
    (making / "recipe.toml").write_text(toml.dump(table))
    execute([sys.executable, "-m", "sojourn", "train", str(making / "recipe.toml"), "--out", str(making / "run")])
    figures = {**measured(making / "run"), "commit": commit(), **wanted}
    (making / FIGURES).write_text(json.dumps(figures))
    shutil.rmtree(place, ignore_errors=True)
    making.rename(place)
    won = figures["evaluations"][-1]
    print(f"seed {job.seed}, {job.method}: {won['won']} of {won['of']} won", file=sys.stderr, flush=True)
    return figures


def execute(command: Sequence[str]) -> None:
    alone = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(HERE.parent)}
    env = {**os.environ, **alone, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=HERE.parent, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\nfailed:\n{done.stderr[-2000:]}")


def measured(run: Path) -> dict[str, Any]:
    lines = [line.values for line in metrics.read(run / "metrics.jsonl")]
    found = [(e["name"], e["summary"]["overall"]) for e in RunFolder.read(run).evaluations()]
    return {
        "success": [round(values["success"], 4) for values in lines if "success" in values],
        "evaluations": [
            {"name": name, "won": round(all_["success"]["mean"] * all_["episodes"]), "of": all_["episodes"]}
            for name, all_ in found
        ],
        "seconds_per_step": [round(values["seconds_step"], 3) for values in lines],
        "episodes": round(sum(values["episodes"] for values in lines)),
        "turns": [round(values["turns"], 2) for values in lines],
    }


# -- all of them


def bake(methods: Sequence[str], seeds: Sequence[int], folder: Path, workers: int) -> dict[str, Any]:
    """The runs by method and seed, of which one after the other is made; what fails is said and left out."""
    with ThreadPoolExecutor(workers) as pool:
        warm = list(pool.map(lambda seed: run(Job(WARMUP, seed), folder), seeds))
        jobs = [Job(method, seed) for seed in seeds for method in methods]
        done = list(pool.map(lambda job: attempt(job, folder), jobs))
    runs: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for job, figures in zip(jobs, done, strict=True):
        if figures is not None:
            runs[job.method][str(job.seed)] = {k: v for k, v in figures.items() if k not in ("recipe", "warmup")}
    cloning = {str(seed): sum(figures["seconds_per_step"]) for seed, figures in zip(seeds, warm, strict=True)}
    return {"cloning_seconds": cloning, "runs": {method: found for method, found in runs.items() if found}}


def attempt(job: Job, folder: Path) -> dict[str, Any] | None:
    try:
        return run(job, folder)
    except RuntimeError as failure:
        print(f"seed {job.seed}, {job.method} is left out: {failure}", file=sys.stderr, flush=True)
        return None


def summary(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns, by method, success at the end and in training and a step's cost, each also beside GRPO's by seed."""
    return {method: beside(found, runs.get(BASE, {})) for method, found in runs.items()}


def beside(found: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {seed: outcome(of) for seed, of in found.items()}
    others = {seed: outcome(of) for seed, of in base.items() if seed in found}
    pairs = [(numbers[seed], other) for seed, other in others.items()]
    final = interval([own.final - other.final for own, other in pairs])
    return {
        "seeds": len(found),
        "final": interval([own.final for own in numbers.values()]),
        "final_minus_grpo": final,
        "verdict": verdict(final),
        "training": interval([own.training for own in numbers.values()]),
        "training_minus_grpo": interval([own.training - other.training for own, other in pairs]),
        "seconds_per_step": interval([own.seconds for own in numbers.values()]),
        "times_grpo": interval([own.seconds / other.seconds for own, other in pairs]),
    }


class Outcome(NamedTuple):
    final: float  # success on the held-out panel after the last step
    training: float  # success over all steps: the greater, the faster it was learnt
    seconds: float  # of a step, the median


def outcome(figures: Mapping[str, Any]) -> Outcome:
    last = figures["evaluations"][-1]
    seconds = statistics.median(figures["seconds_per_step"])
    return Outcome(last["won"] / last["of"], float(np.mean(figures["success"])), seconds)


def interval(values: Sequence[float]) -> list[float | None]:
    """Mean, and the ends of its 95% interval over seeds (Student's t); none for a single seed."""
    return [round(x, 4) if np.isfinite(x) else None for x in intervals.mean(values)[:3]]


def verdict(difference: Sequence[float | None]) -> str:
    _, low, high = difference
    if low is None or high is None:
        return "too few seeds"
    return "better" if low > 0 else "worse" if high < 0 else "not told apart"


def figures(methods: Sequence[str], seeds: Sequence[int], folder: Path, workers: int) -> dict[str, Any]:
    baked = bake(methods, seeds, folder, workers)
    starts = {seed: of["evaluations"][0] for found in baked["runs"].values() for seed, of in found.items()}
    stage = resolve(toml.read(HERE / "credit.toml")).recipe.stages[0]
    return {
        "steps": stage.steps,
        "episodes_per_step": stage.groups.width * (group_size(stage.groups) or 0),
        "at_once": workers,
        "methods": {method: METHODS[method] for method in methods},
        "warm_start": {seed: [start["won"], start["of"]] for seed, start in sorted(starts.items())},
        "summary": summary(baked["runs"]),
        **baked,
    }


def told(found: Mapping[str, Any]) -> str:
    """The summary as a table, the best first."""
    rows = sorted(found["summary"].items(), key=lambda item: -item[1]["final"][0])
    lines = [f"{'':14}{'final':>20}{'less GRPO':>22}{'training less GRPO':>24}{'cost':>7}"]
    for method, of in rows:
        parts = [shown(of[name]) for name in ("final", "final_minus_grpo", "training_minus_grpo")]
        cost = "" if of["times_grpo"][0] is None else f"{of['times_grpo'][0]:.2f}"
        lines.append(f"{method:14}{parts[0]:>20}{parts[1]:>22}{parts[2]:>24}{cost:>7}  {of['verdict']}")
    return "\n".join(lines)


def shown(estimate: Sequence[float | None]) -> str:
    mean, low, high = ("?" if x is None else f"{100 * x:.0f}" for x in estimate)
    return f"{mean}% [{low}, {high}]"


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="a bake-off of credit-assignment methods")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS), metavar="A,B")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=list(SEEDS))
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, of one thread each")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-credit")
    parser.add_argument("--plot", action="store_true", help="draw results/credit.json, or that of --folder, again")
    parser.add_argument("--dry", action="store_true", help="build every recipe, run nothing")
    options = parser.parse_args(given)
    if unknown := set(options.methods) - set(METHODS):
        parser.error(f"no method {', '.join(sorted(unknown))}: there are {', '.join(METHODS)}")
    whole = set(options.methods) == set(METHODS) and set(options.seeds) >= set(SEEDS)
    out = RESULTS if whole else options.folder
    if options.dry:
        for job in (Job(method, seed) for seed in options.seeds for method in (WARMUP, *options.methods)):
            resolve(job.tables(options.folder))
            print(f"seed {job.seed}: {job.method} can be built")
        return
    if not options.plot:
        options.folder.mkdir(parents=True, exist_ok=True)
        found = figures(options.methods, options.seeds, options.folder.resolve(), options.workers)
        print(told(found), write("credit", found, folder=out), sep="\n")
    figured = json.loads(result("credit.json", out).read_text())["figures"]
    draw(figured, result("credit.png", out))


if __name__ == "__main__":
    main(sys.argv[1:])
