"""Compares learning from trees of plays, and from plays that a search found, with learning from plays from the start.

    python benchmarks/tree_learning.py                                   # all; about two hours on two cores
    python benchmarks/tree_learning.py --world toy --seeds 6 --variants tree_values   # into the work folder
    python benchmarks/tree_learning.py --dry                             # builds every recipe, runs nothing

Two worlds of long plays with one reward, at the end: the toy with three locked doors, and lakes of ice of 6 x 6 fields.
For each seed a model is cloned a little, and every variant goes on from there until as many tokens were sampled as in
all others, those of plays that a search only tried included. Variants differ in how a step's plays are sampled and in
their credit; a step has eight tasks and eight plays of each, from the start or as leaves of two trees. Learning rates
are those of `experience.py`, chosen with GRPO, which may favour it; advantages are divided by their standard deviation
in all of them. `search` is expert iteration: plays that a tree search found are imitated where they succeeded, and
evaluations are without a search, as for all others; `searched` imitates all plays that the search tried and that
succeeded, and `agent_q` prefers, of the actions that it tried at a state, those that led to more.

What is finished stays in `--folder`; `bakeoff.py` says how trainings are run and compared. A world with all its seeds
and variants is written to `results`, as `tree_learning_<world>.json`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bakeoff import HERE, WARMUP, Bakeoff, Job, bake, summary, told
from experience import short
from machine import RESULTS, write

from sojourn.train.resolve import resolve

BASE = "grpo"
SEEDS = range(5)
WORLDS = ("toy", "frozenlake")


def tree(rule: Mapping[str, Any], estimator: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a variant whose plays fork where a rule says, into four leaves of each root."""
    branching = {"leaves": 4, **rule}
    return {"groups": {"name": "slots", "width": 8, "size": 2, "branching": branching}, "estimator": dict(estimator)}


SCALED = {"name": "tree_values", "scale_by_std": True}
UNIFORM = {"name": "uniform", "every": 4, "width": 2, "depth": 2}
UNCERTAIN = {"name": "uncertain_turns", "count": 3, "depth": 1}
SEARCH = {"name": "mcts", "width": 3, "simulations": 12, "tokens": 600}
TRIED = {"name": "searched", "width": 8, "size": 1, "tried": 16, "agent": SEARCH}

VARIANTS: dict[str, dict[str, Any]] = {  # what each has instead of the recipe's, which is GRPO on eight plays of a task
    BASE: {},
    "gigpo": {"estimator": {"name": "gigpo"}},
    "tree_values": tree(UNIFORM, {**SCALED, "against": "group"}),
    "treerl": tree(UNCERTAIN, {**SCALED, "against": "both", "by_leaves": True}),
    "aepo": {
        "groups": {"name": "slots", "width": 8, "size": 1, "branching": {"name": "balanced_entropy", "leaves": 8}},
        "estimator": {**SCALED, "against": "group"},
    },
    "uncertain_states": tree({"name": "uncertain_states", "count": 2}, {**SCALED, "against": "group"}),
    "tree_grpo": tree({"name": "random_turns", "count": 3, "depth": 1}, {"name": "tree_grpo"}),
    "search": {
        "agent": {**SEARCH, "base": {"name": "plain", "choices": True}},
        "groups": {"name": "slots", "width": 8, "size": 1},
        "estimator": {"name": "constant", "threshold": 0.5},
        "losses": [{"name": "nll"}],
    },
    "agent_q": {
        "groups": TRIED,
        "streams": [{"name": "turn_pairs"}, {"name": "ref_logprobs"}],
        "estimator": {"name": "constant"},
        "losses": [{"name": "dpo"}],
    },
    "searched": {
        "groups": TRIED,
        "estimator": {"name": "constant", "threshold": 0.5},
        "losses": [{"name": "nll"}],
    },
}


def bakeoff_of(world: str) -> Bakeoff:
    return Bakeoff(HERE / f"tree_{world}.toml", HERE / f"tree_{world}_warmup.toml", VARIANTS, BASE)


def compared(world: str, names: Sequence[str], seeds: Sequence[int], folder: Path, workers: int) -> dict[str, Any]:
    """Returns the figures of the variants in a world."""
    baked = bake(bakeoff_of(world), names, seeds, folder / world, workers)
    return {
        "variants": {name: VARIANTS[name] for name in names},
        "summary": summary(BASE, baked),
        "runs": {name: {seed: short(of) for seed, of in found.items()} for name, found in baked.items()},
    }


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="learning from trees of plays, and by searches")
    parser.add_argument("--world", choices=WORLDS, action="append", help="(default: all)")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=list(SEEDS))
    parser.add_argument("--variants", type=lambda text: text.split(","), default=list(VARIANTS), metavar="A,B")
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, of one thread each")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-trees")
    parser.add_argument("--dry", action="store_true", help="build every recipe, run nothing")
    options = parser.parse_args(given)
    if unknown := set(options.variants) - set(VARIANTS):
        parser.error(f"no variant {sorted(unknown)[0]}: choose among {', '.join(VARIANTS)}")
    names = [name for name in VARIANTS if name in (BASE, *options.variants)]
    whole = len(names) == len(VARIANTS) and set(options.seeds) >= set(SEEDS)
    options.folder.mkdir(parents=True, exist_ok=True)
    for world in options.world or WORLDS:
        if options.dry:
            for variant in (WARMUP, *names):
                resolve(Job(bakeoff_of(world), variant, 0).tables(options.folder / world))
                print(f"{world}: {variant} can be built")
            continue
        done = compared(world, names, options.seeds, options.folder.resolve(), options.workers)
        print(world, told(BASE, done), sep="\n", flush=True)
        print(write(f"tree_learning_{world}", done, folder=RESULTS if whole else options.folder))


if __name__ == "__main__":
    main(sys.argv[1:])
