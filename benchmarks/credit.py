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

What is finished stays in `--folder`; `bakeoff.py` says how trainings are run and compared. Only the whole bake-off
writes to `results`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bakeoff import WARMUP, Bakeoff, Job, bake, summary, told
from credit_plot import draw
from machine import RESULTS, result, write

from sojourn.abilities import group_size
from sojourn.config import toml
from sojourn.train.resolve import resolve

HERE = Path(__file__).parent
BASE = "grpo"  # what the others are compared with
SEEDS = range(5)
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


CREDIT = Bakeoff(HERE / "credit.toml", HERE / "credit_warmup.toml", METHODS, BASE)


def figures(methods: Sequence[str], seeds: Sequence[int], folder: Path, workers: int) -> dict[str, Any]:
    baked = bake(CREDIT, methods, seeds, folder, workers)
    starts = {seed: of["evaluations"][0] for found in baked.values() for seed, of in found.items()}
    stage = resolve(toml.read(HERE / "credit.toml")).recipe.stages[0]
    return {
        "steps": stage.steps,
        "episodes_per_step": stage.groups.width * (group_size(stage.groups) or 0),
        "at_once": workers,
        "methods": {method: METHODS[method] for method in methods},
        "warm_start": {seed: [start["won"], start["of"]] for seed, start in sorted(starts.items())},
        "summary": summary(BASE, baked),
        "runs": baked,
    }


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
        for job in (Job(CREDIT, method, seed) for seed in options.seeds for method in (WARMUP, *options.methods)):
            resolve(job.tables(options.folder))
            print(f"seed {job.seed}: {job.variant} can be built")
        return
    if not options.plot:
        options.folder.mkdir(parents=True, exist_ok=True)
        found = figures(options.methods, options.seeds, options.folder.resolve(), options.workers)
        print(told(BASE, found), write("credit", found, folder=out), sep="\n")
    figured = json.loads(result("credit.json", out).read_text())["figures"]
    draw(figured, result("credit.png", out))


if __name__ == "__main__":
    main(sys.argv[1:])
