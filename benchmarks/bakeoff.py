"""Trains variants of one recipe from the same starts, seed by seed, and compares them with one of them.

For each seed a model is trained once by the recipe of the warm-up; every variant goes on from there. Every training is
a process of its own, on one thread. What is finished stays in the work folder: a killed bake-off goes on, and what has
another recipe now is done again.

Intervals are Student's t over seeds, 95%; differences are paired by seed. Of twenty such intervals one leaves out the
truth by chance.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from machine import RESULTS, commit

from sojourn import intervals
from sojourn.config import toml
from sojourn.record import metrics
from sojourn.record.run import RunFolder
from sojourn.train.resolve import resolve

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # where recipes find the worlds of this folder, such as benchmarks.locks:Locks
WARMUP = "warmup"
DONE = "done"  # a file in the folder of a training that has ended
FIGURES = "figures.json"
SEED = 1000  # is added to a variant's seed, so that none trains on the tasks of the warm-up


@dataclass(frozen=True)
class Bakeoff:
    """Describes what is compared: `variants` holds what each has instead of the recipe's keys, and `base` is the one
    that all are compared with. "{base}" in a text of a variant stands for the run of the base, which is trained
    before."""

    recipe: Path
    warmup: Path
    variants: Mapping[str, Mapping[str, Any]]
    base: str


class Job(NamedTuple):
    bakeoff: Bakeoff
    variant: str  # or WARMUP
    seed: int

    def place(self, folder: Path) -> Path:
        return folder / f"seed-{self.seed}" / self.variant

    def tables(self, folder: Path) -> toml.Tables:
        """Returns the whole recipe, and where its values come from."""
        if self.variant == WARMUP:
            tables = toml.read(self.bakeoff.warmup)
            tables.merge({"seed": self.seed}, "the bake-off")
            return tables
        tables = toml.read(self.bakeoff.recipe)
        warm = str(Job(self.bakeoff, WARMUP, self.seed).place(folder) / "run")
        tables.merge({"seed": SEED + self.seed, "model": {"weights": warm}}, "the bake-off")
        base = str(self._replace(variant=self.bakeoff.base).place(folder) / "run")
        tables.merge(_filled(self.bakeoff.variants[self.variant], base), self.variant)
        return tables


def _filled(value: Any, base: str) -> Any:
    """Returns a value in which "{base}" is replaced by the run of the base."""
    if isinstance(value, Mapping):
        return {key: _filled(item, base) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, base) for item in value]
    return value.replace("{base}", base) if isinstance(value, str) else value


# -- one training


def run(job: Job, folder: Path) -> dict[str, Any]:
    """Returns the figures of one training: those that are there, where they are of the same recipe, else made now."""
    place, table = job.place(folder), job.tables(folder).data
    wanted = {"recipe": table, "warmup": job._replace(variant=WARMUP).tables(folder).data}
    if (place / FIGURES).exists():
        found = json.loads((place / FIGURES).read_text())
        if {name: found[name] for name in wanted} == wanted:
            return found
    place.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{job.variant}-", dir=place.parent))  # what is at its place is finished
    (making / "recipe.toml").write_text(toml.dump(table))
    execute([sys.executable, "-m", "sojourn", "train", str(making / "recipe.toml"), "--out", str(making / "run")])
    figures = {**measured(making / "run"), "commit": commit(), **wanted}
    (making / FIGURES).write_text(json.dumps(figures))
    shutil.rmtree(place, ignore_errors=True)
    making.rename(place)
    won = figures["evaluations"][-1]
    print(f"seed {job.seed}, {job.variant}: {won['won']} of {won['of']} won", file=sys.stderr, flush=True)
    return figures


def trained(place: Path, tables: toml.Tables) -> Path:
    """Returns the run of these tables in a folder, which is trained, or goes on, where it has not ended."""
    run = place / "run"
    if not (place / DONE).exists():
        place.mkdir(parents=True, exist_ok=True)
        (place / "recipe.toml").write_text(toml.dump(resolve(tables).table))
        begun = (run / "config.toml").is_file()
        words = ["--resume", str(run)] if begun else [str(place / "recipe.toml"), "--out", str(run)]
        if not begun:
            shutil.rmtree(run, ignore_errors=True)
        execute([sys.executable, "-m", "sojourn", "train", *words])
        (place / DONE).touch()
    return run


def execute(command: Sequence[str]) -> str:
    """Runs a command on one thread, or as many as `OMP_NUM_THREADS` says, and returns what it prints. Raises
    `RuntimeError` where it fails."""
    alone = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "OMP_WAIT_POLICY": "passive",
        "PYTHONPATH": f"{HERE.parent}:{HERE.parent / 'worlds'}",
    }
    env = {**os.environ, **alone, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=HERE.parent, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\nfailed:\n{done.stderr[-2000:]}")
    return done.stdout


def measured(run: Path) -> dict[str, Any]:
    lines = [line.values for line in metrics.read(run / "metrics.jsonl")]
    found = [(e["name"], e["summary"]["overall"]) for e in RunFolder.read(run).evaluations()]
    return {
        "success": [round(values["success"], 4) for values in lines if "success" in values],
        "zero_signal": [round(values["zero_signal"], 4) for values in lines if "zero_signal" in values],
        "evaluations": [
            {"name": name, "won": round(all_["success"]["mean"] * all_["episodes"]), "of": all_["episodes"]}
            for name, all_ in found
        ],
        "seconds_per_step": [round(values["seconds_step"], 3) for values in lines],
        "episodes": round(sum(values["episodes"] for values in lines)),
        "tokens": round(sum(values["sampled_tokens"] for values in lines)),
        "turns": [round(values["turns"], 2) for values in lines],
    }


# -- all of them


Runs = Mapping[str, Mapping[str, Any]]  # the figures of trainings, by variant and seed


def recorded(name: str) -> Runs:
    """Returns the runs that a result has already; none where there is no such result."""
    file = RESULTS / f"{name}.json"
    figures = json.loads(file.read_text())["figures"] if file.exists() else {"runs": {}}
    return figures["runs"] if "runs" in figures else {name: of["runs"] for name, of in figures["variants"].items()}


def joined(known: Runs, found: Runs, variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns known runs and new ones together, in the order of the variants and of the seeds."""
    both = {variant: {**known.get(variant, {}), **found.get(variant, {})} for variant in variants}
    return {variant: dict(sorted(runs.items(), key=lambda run: int(run[0]))) for variant, runs in both.items() if runs}


def made(jobs: Sequence[Any], measure: Callable[[Any], dict[str, Any]], workers: int) -> dict[str, dict[str, Any]]:
    """Returns what is measured for each job, which has a `variant` and a `seed`; `workers` are measured at once."""
    with ThreadPoolExecutor(workers) as pool:
        figures = list(pool.map(measure, jobs))
    runs: dict[str, dict[str, Any]] = {}
    for job, of in zip(jobs, figures, strict=True):
        runs.setdefault(job.variant, {})[str(job.seed)] = {**of, "commit": commit()}
    return runs


def missing(known: Runs, variants: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, int]]:
    """Returns the variants and seeds that are not known, seed by seed."""
    return [(variant, seed) for seed in seeds for variant in variants if str(seed) not in known.get(variant, {})]


def bake(
    bakeoff: Bakeoff,
    variants: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    workers: int,
    known: Runs | None = None,
) -> dict[str, dict[str, Any]]:
    """Returns the runs by variant and seed, of which `workers` are made at once, but for `known` ones; what fails is
    said and left out."""
    wanted = missing(known or {}, variants, seeds)
    seeds = list(dict.fromkeys(seed for _, seed in wanted))
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda seed: run(Job(bakeoff, WARMUP, seed), folder), seeds))
        jobs = [Job(bakeoff, variant, seed) for variant, seed in wanted]
        jobs.sort(key=lambda job: job.variant != bakeoff.base)  # the others may learn from what the base recorded
        count = sum(job.variant == bakeoff.base for job in jobs)

        def attempt(job: Job) -> dict[str, Any] | None:
            return attempted(lambda: run(job, folder), f"seed {job.seed}, {job.variant}")

        done = [out for part in (jobs[:count], jobs[count:]) for out in pool.map(attempt, part)]
    runs: dict[str, dict[str, Any]] = {variant: {} for variant in variants}
    for job, figures in zip(jobs, done, strict=True):
        if figures is not None:
            runs[job.variant][str(job.seed)] = {k: v for k, v in figures.items() if k not in ("recipe", "warmup")}
    return {variant: found for variant, found in runs.items() if found}


def attempted(make: Callable[[], dict[str, Any]], what: str) -> dict[str, Any] | None:
    """Returns the figures that `make` returns, or None where it fails, which is said."""
    try:
        return make()
    except RuntimeError as failure:
        print(f"{what} is left out: {failure}", file=sys.stderr, flush=True)
        return None


def summary(base: str, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns, by variant, success at the end and in training and a step's cost, each also beside the base's by
    seed."""
    return {variant: beside(base, found, runs.get(base, {})) for variant, found in runs.items()}


def beside(base: str, found: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {seed: outcome(of) for seed, of in found.items()}
    pairs = [(numbers[seed], outcome(of)) for seed, of in others.items() if seed in found]
    final = interval([own.final - other.final for own, other in pairs])
    return {
        "seeds": len(found),
        "final": interval([own.final for own in numbers.values()]),
        f"final_minus_{base}": final,
        "verdict": verdict(final),
        "training": interval([own.training for own in numbers.values()]),
        f"training_minus_{base}": interval([own.training - other.training for own, other in pairs]),
        "seconds_per_step": interval([own.seconds for own in numbers.values()]),
        f"times_{base}": interval([own.seconds / other.seconds for own, other in pairs]),
    }


class Outcome(NamedTuple):
    final: float  # success on the held-out panel after the last step
    training: float  # success over all steps: the greater, the faster it was learnt; 0 where nothing was played
    seconds: float  # of a step, the median


def outcome(figures: Mapping[str, Any]) -> Outcome:
    last = figures["evaluations"][-1]
    seconds = statistics.median(figures["seconds_per_step"])
    return Outcome(last["won"] / last["of"], float(np.mean(figures["success"] or [0.0])), seconds)


def interval(values: Sequence[float]) -> list[float | None]:
    """Returns the mean, and the ends of its 95% interval over seeds (Student's t); none for a single seed."""
    return [round(x, 4) if np.isfinite(x) else None for x in intervals.mean(values)[:3]]


def in_units(estimate: Sequence[float | None]) -> str:
    """Returns a mean and its interval, as `interval` gives them, in the units of what was measured."""
    mean, low, high = estimate
    return f"{mean:.3f} " + ("(one seed)" if low is None else f"[{low:.3f}, {high:.3f}]")


def verdict(difference: Sequence[float | None]) -> str:
    _, low, high = difference
    if low is None or high is None:
        return "too few seeds"
    return "better" if low > 0 else "worse" if high < 0 else "not told apart"


def told(base: str, found: Mapping[str, Any]) -> str:
    """Returns the summary as a table, the best first."""
    rows = sorted(found["summary"].items(), key=lambda item: -item[1]["final"][0])
    width, less = max(map(len, found["summary"])) + 2, f"less {base}"
    lines = [f"{'':{width}}{'final':>20}{less:>22}{f'training {less}':>28}{'cost':>7}"]
    for variant, of in rows:
        parts = [shown(of[name]) for name in ("final", f"final_minus_{base}", f"training_minus_{base}")]
        cost = "" if of[f"times_{base}"][0] is None else f"{of[f'times_{base}'][0]:.2f}"
        lines.append(f"{variant:{width}}{parts[0]:>20}{parts[1]:>22}{parts[2]:>28}{cost:>7}  {of['verdict']}")
    return "\n".join(lines)


def shown(estimate: Sequence[float | None]) -> str:
    mean, low, high = ("?" if x is None else f"{100 * x:z.0f}" for x in estimate)
    return f"{mean}% [{low}, {high}]"
