"""What a search at test time brings: success against the tokens that a play takes, by searcher and budget.

    python benchmarks/test_time_search.py                      # all; about half an hour on two cores
    python benchmarks/test_time_search.py --world toy          # one world

In each world a tiny model is cloned a little (its recipe is the warm-up of other benchmarks); then each searcher plays
held-out tasks with several budgets of sampled tokens a play. `truth` says whether it is told the world's reward of
plays that it tried, as all are but `self_consistency`, which takes the answer that most of its plays give. `tokens` are
those that a play took in the mean, of the search too.

In the game, tic-tac-toe of OpenSpiel against a solved opponent, which no play can beat, success is a draw; the policy
is an untrained model that draws legal moves, and `minimax` is tried by depth.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bakeoff import HERE, execute
from machine import write

TASKS = 128
SEARCHERS: dict[str, dict[str, Any]] = {
    "best_of_n": {"n": 64, "at_once": 1},
    "self_consistency": {"n": 8},
    "look_ahead": {"width": 3, "rollouts": 2},
    "best_first": {"width": 3, "expansions": 64, "by": "likelihood"},
    "mcts": {"width": 3, "simulations": 64},
}
WORLDS: dict[str, tuple[str, list[str], Sequence[int]]] = {  # recipe, settings, budgets
    "toy": ("benchmarks/tree_toy_warmup.toml", ["seed=50", "steps=40"], (100, 200, 400, 800)),
    "frozenlake": ("benchmarks/tree_frozenlake_warmup.toml", ["seed=50"], (100, 200, 400, 800)),
    "guess": (
        "recipes/guess/train.toml",
        ["seed=50", "stages.warmup.steps=40", "stages.rl.steps=0"],
        (40, 80, 160, 320),
    ),
}
GAME = """
name = "game"
seed = 50
steps = 0
groups = { name = "experts", width = 1 }
estimator = { name = "constant" }
losses = [{ name = "nll" }]
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
env = { name = "openspiel", game = "tic_tac_toe", opponent = "expert", choices = true }
agent = { name = "plain", choices = true }
backend = { name = "torch", threads = 1 }
sampling = { max_tokens = 8 }
rollout = { limits = { turns = 9 } }
evaluation = { tasks = 128 }
"""
IN_GAME: dict[str, list[dict[str, Any]]] = {
    "look_ahead": [{"width": 9, "rollouts": count} for count in (1, 4)],
    "mcts": [{"width": 9, "simulations": count} for count in (8, 32, 128)],
    "minimax": [{"depth": depth, "rollouts": 1} for depth in (1, 2, 3)],
}
EVALUATE = """
import json, sys, sojourn
run, overrides = sys.argv[1], json.loads(sys.argv[2])
found = sojourn.evaluate(run, progress=False, **overrides)
print(json.dumps(found.to_json()))
"""


def evaluated(run: Path, agent: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns success with its interval, and the tokens of a play, of an agent on the held-out tasks of a run."""
    overrides: dict[str, Any] = {"evaluation.tasks": TASKS, "evaluation.search": True}
    overrides |= {f"agent.{key}": value for key, value in (agent or {}).items()}
    told = execute([sys.executable, "-c", EVALUATE, str(run), json.dumps(overrides)])
    overall = json.loads(told.strip().splitlines()[-1])["overall"]
    return {
        "success": [round(overall["success"][key], 4) for key in ("mean", "low", "high")],
        "reward": round(overall["reward"]["mean"], 4),
        "tokens": round(overall["tokens"]["mean"], 1),
    }


def in_world(name: str, folder: Path) -> dict[str, Any]:
    recipe, settings, budgets = WORLDS[name]
    run = trained(HERE.parent / recipe, settings, folder / name)
    found: dict[str, Any] = {"no search": [evaluated(run, None)]}
    for searcher, keys in SEARCHERS.items():
        found[searcher] = []
        for budget in budgets:
            one = evaluated(run, {"name": searcher, **keys, "tokens": budget})
            found[searcher].append({"budget": budget, "truth": searcher != "self_consistency", **one})
            print(f"{name}, {searcher}, {budget}: {one}", file=sys.stderr, flush=True)
    return found


def in_game(folder: Path) -> dict[str, Any]:
    recipe = folder / "game.toml"
    recipe.write_text(GAME)
    run = Path(f"{trained(recipe, [], folder / 'game')}@before")  # it is not trained
    found: dict[str, Any] = {"no search": [evaluated(run, None)]}
    for searcher, settings in IN_GAME.items():
        found[searcher] = []
        for keys in settings:
            one = evaluated(run, {"name": searcher, **keys})
            found[searcher].append({**keys, **one})
            print(f"game, {searcher}, {keys}: {one}", file=sys.stderr, flush=True)
    return found


def trained(recipe: Path, settings: Sequence[str], run: Path) -> Path:
    if not (run / "done").exists():
        shutil.rmtree(run, ignore_errors=True)
        execute([sys.executable, "-m", "sojourn", "train", str(recipe), "--out", str(run), *settings])
        (run / "done").touch()
    return run


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="searches at test time")
    parser.add_argument("--world", choices=[*WORLDS, "game"], action="append", help="(default: all)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-searchers")
    options = parser.parse_args(given)
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()
    for name in options.world or (*WORLDS, "game"):
        found = in_game(folder) if name == "game" else in_world(name, folder)
        print(write(f"test_time_search_{name}", found))


if __name__ == "__main__":
    main(sys.argv[1:])
