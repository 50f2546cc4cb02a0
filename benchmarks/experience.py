"""Compares ways to choose what a step learns from: curricula, sources, and methods on the same recorded data.

    python benchmarks/experience.py                                          # all; hours on two cores
    python benchmarks/experience.py --world toy --part curricula             # one part; up to an hour
    python benchmarks/experience.py --world toy --part sources --seeds 6,7 --variants replay   # into the work folder
    python benchmarks/experience.py --dry                                    # builds every recipe, runs nothing
    python benchmarks/experience.py --plot                                   # draws what is in `results`

Two worlds whose tasks differ widely in difficulty: the toy with six levels, and lakes of ice of five sizes. For each
seed a model is cloned a little, and every variant goes on from there until its policy has sampled as many tokens as all
others; replay, demonstrations and labels come on top of that, as they are not sampled. Tasks that are evaluated are
held out, and are of all levels alike. The learning rate, the size of a step and the constants of the variants are those
of the recipe, of the papers or of the defaults, and were not tuned on these worlds, but for the learning rate of the
lakes.

*Curricula* and *sources* are compared with the recipe itself, `live`: live groups of shuffled tasks, by GRPO. *Methods*
learn from what that run of the same seed recorded (`distilled` from the policy that it ended with, on tokens of its
own), and are compared with that run. What is finished stays in `--folder`; `bakeoff.py` says how trainings are run and
compared. A part of a world with all its seeds is written to `results`, as `experience_<world>_<part>.json`, in which
`without_signal` is the fraction of live groups without a signal, in the quarters of a training's steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bakeoff import HERE, WARMUP, Bakeoff, Job, bake, summary, told
from experience_plot import draw
from machine import RESULTS, write

from sojourn.train.resolve import resolve

BASE = "live"  # the recipe itself
SLOTS = {"name": "slots", "width": 8, "size": 8}
POOL = 128  # tasks of the curricula that must see a task again to know it
ORIGINS = [{"name": "origins"}]


def curriculum(name: str, **keys: Any) -> dict[str, Any]:
    return {"curriculum": {"name": name, **keys}}


def by_label(name: str, **keys: Any) -> dict[str, Any]:
    """Returns a curriculum that shares the draws between tags, of whose tasks it draws all alike."""
    return curriculum(name, by="tag", base={"name": "learnability", "uniform": 1.0}, **keys)


def beside(*parts: Mapping[str, Any], **keys: Any) -> dict[str, Any]:
    """Returns a variant whose steps have the groups of further sources beside the live ones."""
    return {"groups": {"name": "mixed", "parts": [SLOTS, *parts]}, **keys}


def apart(origin: str, loss: Mapping[str, Any], estimator: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a loss and an estimator for the groups of one origin, where the policy's have those of the recipe."""
    return {
        "streams": ORIGINS,
        "estimator": {"name": "by_origin", "base": {"name": "grpo"}, "of": {origin: estimator}},
        "losses": [
            {"name": "of_origin", "origins": ["policy"], "base": {"name": "ppo"}},
            {"name": "of_origin", "origins": [origin], "mean": "origins", "base": loss},
        ],
    }


NLL = {"name": "nll", "coef": 0.1}
CURRICULA: dict[str, dict[str, Any]] = {
    BASE: {},
    "learnability": curriculum("learnability", max_tasks=POOL),
    "near": curriculum("near", max_tasks=POOL),
    "failures_first": curriculum("failures_first", max_tasks=POOL),
    "plr": curriculum("plr", max_tasks=POOL),
    "learning_progress": curriculum("learning_progress", max_tasks=POOL),
    "mopps": curriculum("mopps", max_tasks=POOL),
    "mpts": curriculum("mpts", max_tasks=POOL),
    "solvable": curriculum("solvable", max_tasks=POOL),
    "cost_aware": curriculum("cost_aware", base={"name": "learnability", "max_tasks": POOL}),
    "cost_aware_mpts": curriculum("cost_aware", base={"name": "mpts", "max_tasks": POOL}),
    "bandit": by_label("bandit"),
    "exp3s": by_label("exp3s"),
    "levels": by_label("levels"),
    "deficits": {**by_label("deficits"), "evaluation": {"every": 10}},
}
SOURCES: dict[str, dict[str, Any]] = {
    BASE: {},
    "replay": beside({"name": "replay", "width": 2}),
    "replay_recent": beside({"name": "replay", "width": 2, "priority": "recent", "max_age": 5}),
    "replay_signal": beside({"name": "replay", "width": 2, "priority": "signal"}),
    "success_replay": {"groups": {"name": "success_replay", "base": SLOTS}, **curriculum("shuffle", max_tasks=POOL)},
    "self_imitation": beside(
        {"name": "replay", "width": 2, "success_only": True, "priority": "signal"},
        **apart("replay", NLL, {"name": "self_imitation"}),
    ),
    "demonstrations": beside({"name": "experts", "width": 2}, **apart("experts", NLL, {"name": "constant"})),
    "horizon": {"groups": {**SLOTS, "horizon": {"name": "stairs", "factors": [0.33, 0.67, 1.0], "every": 8}}},
}
RECORDED = {"name": "folder", "path": "{base}", "stage": "train", "width": 8}


def offline(**keys: Any) -> dict[str, Any]:
    """Returns a variant that learns from what the recipe's own run recorded."""
    return {"groups": RECORDED, "early_stop": {"tokens": 0}, "estimator": {"name": "constant"}, **keys}


METHODS: dict[str, dict[str, Any]] = {
    BASE: {},
    "cloned": offline(losses=[{"name": "nll"}]),
    "cloned_successes": offline(estimator={"name": "constant", "threshold": 0.5}, losses=[{"name": "nll"}]),
    "dpo": offline(streams=[{"name": "pairs"}, {"name": "ref_logprobs"}], losses=[{"name": "dpo"}]),
    "kto": offline(
        streams=[{"name": "desirable"}, {"name": "ref_logprobs"}, {"name": "reference_kl"}], losses=[{"name": "kto"}]
    ),
    "awr": offline(estimator={"name": "awr", "base": {"name": "grpo"}}, losses=[{"name": "nll"}]),
    "offline_grpo": offline(estimator={"name": "grpo"}),
    "distilled": {
        "models": {"teacher": {"weights": "{base}"}},
        "groups": {"name": "slots", "width": 8, "size": 8},
        "estimator": {"name": "constant"},
        "streams": [{"name": "teacher", "model": "teacher"}],
        "losses": [{"name": "distill"}],
    },
}
PARTS = {"curricula": CURRICULA, "sources": SOURCES, "methods": METHODS}
MAKES_TASKS = {"accel": curriculum("accel")}


class World(NamedTuple):
    curricula: Mapping[str, Mapping[str, Any]]  # for this world alone
    seeds: Sequence[int]
    steps: int  # of what learns from a recorded run: as many as that run had, or a few more


WORLDS = {  # the seed 0 of frozenlake decided its learning rate, of three, and how much is cloned
    "toy": World(MAKES_TASKS, range(5), steps=30),
    "frozenlake": World({}, range(1, 6), steps=80),
}


def bakeoff_of(world: str, part: str) -> Bakeoff:
    of = WORLDS[world]
    variants = {**PARTS[part], **(of.curricula if part == "curricula" else {})}
    recorded = {"steps": of.steps}
    variants = {name: {**v, **(recorded if v.get("groups") is RECORDED else {})} for name, v in variants.items()}
    recipe = HERE / f"experience_{world}.toml"
    return Bakeoff(recipe, HERE / f"experience_{world}_warmup.toml", variants, BASE)


def compared(
    world: str, part: str, chosen: Sequence[str], seeds: Sequence[int], folder: Path, workers: int
) -> dict[str, Any]:
    """Returns the figures of the recipe and the `chosen` variants of one part in one world, or of all; what several
    parts share is trained once."""
    bakeoff = bakeoff_of(world, part)
    if unknown := set(chosen) - bakeoff.variants.keys():
        raise SystemExit(f"no variant {sorted(unknown)[0]}: choose among {', '.join(bakeoff.variants)}")
    names = [name for name in bakeoff.variants if not chosen or name in (BASE, *chosen)]
    baked = bake(bakeoff, names, seeds, folder / world, workers)
    runs = {name: {seed: short(of) for seed, of in found.items()} for name, found in baked.items()}
    return {
        "variants": {name: bakeoff.variants[name] for name in names},
        "summary": summary(BASE, baked),
        "runs": runs,
    }


def short(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of a training without its curves."""
    kept = {name: figures[name] for name in ("evaluations", "episodes", "tokens", "commit")}
    quarters = np.array_split(figures["zero_signal"], 4)
    without = [round(float(part.mean()), 3) for part in quarters if len(part)]
    return {**kept, "steps": len(figures["seconds_per_step"]), "without_signal": without}


def plot() -> Path:
    """Draws the parts that are in `results`."""
    paths = {(world, part): RESULTS / f"experience_{world}_{part}.json" for part in PARTS for world in WORLDS}
    found = {key: json.loads(path.read_text())["figures"] for key, path in paths.items() if path.exists()}
    if not found:
        raise SystemExit(f"no experience_*.json in {RESULTS}: run a part with all its seeds first")
    out = RESULTS / "experience.png"
    draw(found, BASE, out)
    return out


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="a comparison of ways to choose experience")
    parser.add_argument("--world", choices=list(WORLDS), action="append", help="(default: all)")
    parser.add_argument("--part", choices=list(PARTS), action="append", help="(default: all)")
    parser.add_argument(
        "--seeds", type=lambda text: [int(s) for s in text.split(",")], help="(default: five of each world)"
    )
    parser.add_argument("--variants", default="", help="some of a part, beside the recipe (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, of one thread each")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-experience")
    parser.add_argument("--dry", action="store_true", help="build every recipe, run nothing")
    parser.add_argument("--plot", action="store_true", help="draw the results that are there, run nothing")
    options = parser.parse_args(given)
    if options.plot:
        print(plot())
        return
    chosen = [(world, part) for world in options.world or WORLDS for part in options.part or PARTS]
    if options.dry:
        for world, part in chosen:
            bakeoff = bakeoff_of(world, part)
            for variant in (WARMUP, *bakeoff.variants):
                resolve(Job(bakeoff, variant, 0).tables(options.folder / world))
                print(f"{world}, {part}: {variant} can be built")
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    for world, part in chosen:
        seeds = options.seeds or WORLDS[world].seeds
        some = [name for name in options.variants.split(",") if name]
        done = compared(world, part, some, seeds, options.folder.resolve(), options.workers)
        print(f"{world}, {part}", told(BASE, done), sep="\n", flush=True)
        print(write(f"experience_{world}_{part}", done, folder=options.folder if options.seeds or some else RESULTS))


if __name__ == "__main__":
    main(sys.argv[1:])
