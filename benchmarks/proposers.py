"""Compares learning on tasks that a model proposes with learning on those of a split, and of curricula.

    python benchmarks/proposers.py                                            # all; about two hours on two cores
    python benchmarks/proposers.py --seeds 6 --variants proposer,one_model    # into the work folder
    python benchmarks/proposers.py --tokens 20000 --seeds 0                   # a short look, into the work folder
    python benchmarks/proposers.py --dry                                      # builds every recipe, runs nothing

The toy with six levels of `experience.py`. For each seed a model is cloned a little, and every variant goes on from
there until as many tokens were sampled as in all others, those of proposals included. The held-out panel has tasks of
all levels, which no proposer sees. All tasks are within the sizes of the split's: what differs is which are played.

`fixed` plays the tasks of the split in random order; `learnability` and `accel` are curricula. A proposer names the
five numbers of a task, each from a list, so that what it proposes is always well-formed, though not always possible.
In `proposer` it is another model, from scratch, which learns by its own rewards, those of Absolute Zero; in
`proposer_middle` they are 4 s (1 - s) of the solver's success rate s, and in `proposer_varied` less for proposing what
other proposals of the group are; `proposer_random` does not learn, and so tells
what tasks at random are worth; in `one_model` the solver proposes, too. A step has eight tasks and eight plays of each;
proposals that cannot be used are not replaced. The settings were not tuned.

Measured: nothing teaches more than the split's own tasks, which the panel's are like (70% [68, 73] on five seeds; the
others 59 to 71%, not told apart). Learned proposers come to propose one task over and over, which is solved half of the
time: what is rewarded does not ask for others. `proposed` tells it (`proposals_distinct`).

What is finished stays in `--folder`; `bakeoff.py` says how trainings are run and compared. All seeds and variants are
written to `results`, as `proposers_toy.json`; `proposed` has the means of what was proposed, by quarters of a training.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bakeoff import HERE, WARMUP, Bakeoff, Job, Runs, bake, joined, recorded, summary, told
from machine import RESULTS, write

from sojourn.config import toml
from sojourn.record import metrics
from sojourn.train.resolve import resolve

BASE = "fixed"
SEEDS = range(5)
TOKENS = 80_000
RECIPE = HERE / "proposers_toy.toml"
LIMITS = {"rooms": [2, 5], "side_rooms": [0, 3], "doors": [0, 2], "decoys": [0, 1], "objects": [0, 1]}
PROPOSED = ("used", "solved", "learnable", "reward", "distinct")  # metrics of proposals


def proposing(reward: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns a variant in which the policy proposes tasks, too."""
    world = toml.read(RECIPE).data["env"]
    return {
        "env": {"name": "proposing", "choices": True, "limits": LIMITS, "world": world},
        "groups": {"name": "proposals", "prompts": 2, "proposals": 4, "solves": 8, **(reward or {})},
    }


def by_another(variant: Mapping[str, Any], *, learns: bool = True) -> dict[str, Any]:
    """Returns a variant in which another model proposes."""
    own = {"estimator": {"name": "grpo"}, "losses": [{"name": "ppo"}, {"name": "entropy", "coef": 0.02}]}
    return {
        **variant,
        "models": {"maker": {"name": "tiny:layers=2,hidden=128", "dtype": "fp32"}},
        "seats": {"models": {"proposer": ["maker"]}},
        **({"learners": {"maker": {**own, "optim": {"lr": 1e-3}}}} if learns else {}),
    }


VARIANTS: dict[str, dict[str, Any]] = {  # what each has instead of the recipe's keys
    BASE: {},
    "learnability": {"curriculum": {"name": "learnability", "max_tasks": 128}},
    "accel": {
        "curriculum": {
            "name": "accel",
            "base": {"name": "learnability"},
            "proposer": {"name": "edits", "limits": LIMITS},
        }
    },
    "one_model": proposing(),
    "proposer": by_another(proposing()),
    "proposer_middle": by_another(proposing({"reward": "middle"})),
    "proposer_varied": by_another(proposing({"reward": "middle", "repeated": 1.0})),
    "proposer_random": by_another(proposing(), learns=False),
}


def bakeoff_of(tokens: int) -> Bakeoff:
    """Returns what is compared, for a number of sampled tokens."""
    variants = {name: {**keys, "early_stop": {"tokens": tokens}} for name, keys in VARIANTS.items()}
    return Bakeoff(RECIPE, HERE / "proposers_toy_warmup.toml", variants, BASE)


def proposed(run: Path) -> dict[str, list[float]]:
    """Returns the means of a run's metrics of proposals, by quarters of its steps; nothing where there are none."""
    lines = [line.values for line in metrics.read(run / "metrics.jsonl")]
    names = [f"proposals_{name}" for name in PROPOSED] + [f"proposed_{name}" for name in LIMITS]
    found: dict[str, list[float]] = {}
    for name in names:
        quarters = [[values[name] for values in part if name in values] for part in np.array_split(np.array(lines), 4)]
        if all(quarters):
            found[name] = [round(float(np.mean(quarter)), 3) for quarter in quarters]
    return found


def compared(
    bakeoff: Bakeoff, names: Sequence[str], seeds: Sequence[int], folder: Path, workers: int, known: Runs
) -> dict[str, Any]:
    baked = bake(bakeoff, names, seeds, folder, workers, known)
    found = {
        name: {
            seed: {**of, "proposed": proposed(Job(bakeoff, name, int(seed)).place(folder) / "run")}
            for seed, of in runs.items()
        }
        for name, runs in baked.items()
    }
    runs = joined(known, found, list(VARIANTS))
    return {"variants": {name: bakeoff.variants[name] for name in runs}, "summary": summary(BASE, runs), "runs": runs}


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="tasks that a model proposes, against those of a split")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=list(SEEDS))
    parser.add_argument("--variants", type=lambda text: text.split(","), default=list(VARIANTS), metavar="A,B")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="sampled in each training")
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, of one thread each")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-proposers")
    parser.add_argument("--add", action="store_true", help="add to the result: what it has is not made again")
    parser.add_argument("--dry", action="store_true", help="build every recipe, run nothing")
    options = parser.parse_args(given)
    if unknown := set(options.variants) - set(VARIANTS):
        parser.error(f"no variant {sorted(unknown)[0]}: choose among {', '.join(VARIANTS)}")
    names = [name for name in VARIANTS if name in (BASE, *options.variants)]
    whole = len(names) == len(VARIANTS) and set(options.seeds) >= set(SEEDS) and options.tokens == TOKENS
    if options.add and options.tokens != TOKENS:
        parser.error(f"--add with --tokens {options.tokens}: the result has runs of {TOKENS} tokens: leave one out")
    known = recorded("proposers_toy") if options.add else {}
    options.folder.mkdir(parents=True, exist_ok=True)
    bakeoff = bakeoff_of(options.tokens)
    if options.dry:
        for variant in (WARMUP, *names):
            resolve(Job(bakeoff, variant, 0).tables(options.folder))
            print(f"{variant} can be built")
        return
    done = compared(bakeoff, names, options.seeds, options.folder.resolve(), options.workers, known)
    print(told(BASE, done), flush=True)
    print(write("proposers_toy", done, folder=RESULTS if whole or options.add else options.folder))


if __name__ == "__main__":
    main(sys.argv[1:])
