"""One model on all pages of MiniWoB++: success per page after cloning and after RL, on held-out tasks, over seeds.

    python benchmarks/miniwob_all.py                  # hours; a killed one goes on where it was, in `--folder`
    python benchmarks/miniwob_all.py --seeds 0 --dry
    python benchmarks/miniwob_all.py --until cloned   # without RL
    OMP_NUM_THREADS=2 python benchmarks/miniwob_all.py --seeds 0 --workers 1 --add  # on both cores; adds to the result
    python benchmarks/miniwob_all.py --cloning backend.device=cuda --training backend.device=cuda   # of other settings

Of each seed it trains `recipes/miniwob_all/clone.toml`, then `train.toml` from these weights; the weights that each
run's name means then play `PLAYS` held-out tasks of every page anew, at temperature 1. Means are over pages: over all
of them, over those with an expert and those without, and over the 56 on which results of others are published (Gur et
al. 2022, arXiv:2210.03945).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from bakeoff import HERE, attempted, execute, interval, recorded, shown
from learning import finish, measured, table
from machine import commit, write

from sojourn_worlds.miniwob.experts import EXPERTS
from sojourn_worlds.miniwob.facts import PUBLISHED, page_names

SEEDS = (0, 1, 2)
PLAYS = 10  # of each page
NOTABLE = 0.15  # difference of success that the table of pages shows
RECIPES = {"cloned": "clone.toml", "trained": "train.toml"}
FIGURES = "figures.json"
EVALUATE = f"""
import json, sys, sojourn
settings = {{"env.pages": ["all"], "evaluation.tasks": {PLAYS} * {len(page_names())}}}
print(json.dumps(sojourn.evaluate(sys.argv[1], progress=False, **settings).to_json()))
"""


def recipe(name: str) -> Path:
    return HERE.parent / "recipes" / "miniwob_all" / RECIPES[name]


def run_of(name: str, seed: int, folder: Path) -> Path:
    return folder / f"seed-{seed}" / name / f"miniwob-all-{name}-{seed}"


def settings(name: str, seed: int, folder: Path, overrides: Sequence[str] = ()) -> list[str]:
    weights = [f"model.weights={run_of('cloned', seed, folder)}"] if name == "trained" else []
    return [f"seed={seed}", *weights, *(one.replace("{seed}", str(seed)) for one in overrides)]


def trained(seed: int, folder: Path, overrides: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Returns the figures of a seed, of what was cloned and of what was trained; makes what is not there yet."""
    return {name: figures(name, seed, folder, of) for name, of in overrides.items()}


def figures(name: str, seed: int, folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    run, own = run_of(name, seed, folder), settings(name, seed, folder, overrides)
    wanted, path = table(recipe(name), own), run.with_name(FIGURES)
    if not path.exists():
        finish(recipe(name), own, wanted, run)
        summary = json.loads(execute([sys.executable, "-c", EVALUATE, str(run)]).splitlines()[-1])
        pages = {page: round(summary["tags"][page]["success"]["mean"], 4) for page in page_names()}
        of_run = measured(run)
        of_run["evaluations"] = [{"name": one["name"], "success": one["success"]} for one in of_run["evaluations"]]
        path.write_text(json.dumps({"pages": pages, **of_run, "commit": commit(), "recipe": wanted}))
    found = json.loads(path.read_text())
    if found.pop("recipe") != wanted:
        raise RuntimeError(f"{path} is of another recipe: remove its folder, or give another --folder")
    print(f"seed {seed}, {name}: {over(found['pages'])}", file=sys.stderr, flush=True)
    return found


def over(pages: Mapping[str, float]) -> dict[str, float]:
    """Returns the mean success over several sets of pages."""
    without = [page for page in pages if page not in EXPERTS]
    sets = {"all": list(pages), "with_expert": list(EXPERTS), "without_expert": without, "published": PUBLISHED}
    return {name: round(float(np.mean([pages[page] for page in own])), 4) for name, own in sets.items()}


def summary(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the means over seeds with their intervals, of each set of pages and of each page."""
    found: dict[str, Any] = {}
    for name in next(iter(runs.values())):
        pages = [of[name]["pages"] for of in runs.values()]
        means = [over(own) for own in pages]
        found[name] = {
            "sets": {key: interval([one[key] for one in means]) for key in means[0]},
            "pages": {page: round(float(np.mean([own[page] for own in pages])), 4) for page in pages[0]},
        }
    return found


def page_table(cloned: Mapping[str, float], trained: Mapping[str, float]) -> str:
    """Returns a Markdown table of the pages with an expert and without, by their success in the end, each with that
    after cloning where this is another by 15 points or more."""
    lines = ["| pages | success | number | |", "|---|---|---|---|"]
    for kind, own in (("with an expert", list(EXPERTS)), ("without", [p for p in cloned if p not in EXPERTS])):
        for tenth in range(10, -1, -1):
            found = sorted(page for page in own if round(10 * trained[page]) == tenth)
            names = (
                page + (f" (from {cloned[page]:.0%})" if abs(trained[page] - cloned[page]) >= NOTABLE else "")
                for page in found
            )
            lines += [f"| {kind} | {10 * tenth}% | {len(found)} | {', '.join(names)} |"] if found else []
    return "\n".join(lines)


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=list(SEEDS))
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, of one thread each by default")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-miniwob-all")
    parser.add_argument("--until", choices=list(RECIPES), default="trained", help="the last of the two trainings")
    parser.add_argument("--cloning", nargs="*", default=[], help="overrides of clone.toml; {seed} stands for the seed")
    parser.add_argument("--training", nargs="*", default=[], help="overrides of train.toml, likewise")
    parser.add_argument("--add", action="store_true", help="add to the result: what it has is not made again")
    parser.add_argument("--dry", action="store_true", help="build the recipes, run nothing")
    options = parser.parse_args(given)
    if options.add and (options.cloning or options.training):
        parser.error("--add with overrides: the result has runs of the recipes as they are, leave one of them out")
    overrides = {"cloned": options.cloning, "trained": options.training}
    if options.until == "cloned":
        del overrides["trained"]
    if options.dry:
        for name in overrides:
            table(recipe(name), settings(name, options.seeds[0], options.folder, overrides[name]))
            print(f"{RECIPES[name]} can be built")
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()
    result = "miniwob_all" if options.until == "trained" else "miniwob_all_cloned"
    known = recorded(result) if options.add else {}
    seeds = [seed for seed in options.seeds if str(seed) not in known]
    with ThreadPoolExecutor(options.workers) as pool:
        attempts = pool.map(lambda s: attempted(lambda: trained(s, folder, overrides), f"seed {s}"), seeds)
        done = list(attempts)
    made = {str(seed): of for seed, of in zip(seeds, done, strict=True) if of is not None}
    runs = dict(sorted({**known, **made}.items(), key=lambda run: int(run[0])))
    if not runs:
        sys.exit("no training ended well")
    found = summary(runs)
    for name in found:
        print(name, {key: shown(value) for key, value in found[name]["sets"].items()})
    print(page_table(found["cloned"]["pages"], found[options.until]["pages"]))
    reported = options.add or options.seeds == list(SEEDS)
    figures_of_all = {"overrides": overrides, "summary": found, "runs": runs}
    print(write(result, figures_of_all, **({} if reported else {"folder": folder})))


if __name__ == "__main__":
    main(sys.argv[1:])
