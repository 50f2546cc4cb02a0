"""What a policy learns from a reward model, or from a judge that errs, beside what it learns from the truth.

    python benchmarks/reward_model_learning.py           # all; a quarter of an hour on one core
    python benchmarks/reward_model_learning.py --steps 4 --seeds 0 --variants truth --folder /tmp/try

A little model that begins untrained learns the toy by GRPO, once for each seed and reward, and is evaluated on held-
out tasks by the truth. `reward model`: frozen, trained once on 640 plays of an expert whose actions are now and then
random ones; `as 0 or 1`: whether it says more than 0.5. `learned beside`: the run's own, which learns from each
step's outcomes. `right in 80%`: the truth, but for a fifth of the episodes, drawn by their tokens, of which it says
the contrary. Intervals are Student's t over seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bakeoff import interval
from machine import write
from noisy_experts import NoisyExperts

import sojourn
from sojourn.record import metrics
from sojourn.types import Group, Score, Trajectory

ENV = {"name": "toy", "rooms": 3, "side_rooms": 1, "doors": 0, "decoys": 0, "objects": 1, "choices": True}
HEAD = {
    "model": {"name": "tiny:layers=1,hidden=64", "dtype": "fp32"},
    "backend": {"name": "torch", "threads": 1},
    "env": ENV,
    "agent": {"name": "plain", "choices": True},
    "sampling": {"max_tokens": 8},
    "rollout": {"limits": {"turns": 8}},
}
CRITIC = {"model": "tiny:layers=1,hidden=64", "optim": {"lr": 1e-3}}
OUTCOMES = {"streams": [{"name": "success"}], "losses": [{"name": "binary_cross_entropy"}]}


@dataclass(frozen=True, kw_only=True)
class Flipped:
    """Scores the last turn by whether the episode succeeded, or, for a fraction `errs` of them, by the contrary."""

    errs: float = 0.2

    async def __call__(self, group: Group) -> list[Score]:
        return [self._score(trajectory) for trajectory in group.trajectories]

    def _score(self, trajectory: Trajectory) -> Score:
        tokens = b"".join(turn.sample.tokens.tobytes() + turn.context.tobytes() for turn in trajectory.turns)
        drawn = int.from_bytes(hashlib.sha256(tokens).digest()[:4], "big") / 2**32
        turns = np.zeros(len(trajectory.turns), dtype=np.float32)
        turns[-1:] = trajectory.success != (drawn < self.errs)
        return Score(turns)


def variants(model: Path) -> dict[str, dict[str, Any]]:
    """Returns what each variant has of its own; `model` is the run of the frozen reward model."""
    frozen = {"name": "reward_model", "model": "rm"}
    models = {"rm": {"weights": f"{model}@last"}}
    return {
        "truth": {},
        "reward model": {"reward": frozen, "models": models},
        "reward model as 0 or 1": {
            "reward": {"name": "verified", "base": frozen, "threshold": 0.5},
            "models": models,
        },
        "learned beside": {"reward": {"name": "reward_model"}, "critic": CRITIC},
        "right in 80%": {"reward": Flipped()},
    }


def reward_model(folder: Path) -> Path:
    """Trains the frozen reward model, once."""
    plays, run = folder / "plays", folder / "reward-model"
    if run.exists():
        return run
    last = {"name": "end", "steps": 1, "groups": {"name": "earlier", "stage": "learn", "width": 1}}
    last |= {"estimator": {"name": "constant"}, "losses": [{"name": "nll"}]}
    learn = {"name": "learn", "steps": 20, "trains": False, "groups": NoisyExperts(width=8, size=4)}
    few = {**HEAD, "evaluation": {"tasks": 2}}
    sojourn.train({**few, "name": "plays", "stages": [learn, last]}, out=plays, progress=False)
    groups = {"name": "folder", "path": str(plays), "stage": "learn", "width": 8}
    stage = {"name": "rm", "steps": 60, "groups": groups, "estimator": {"name": "constant"}, **OUTCOMES}
    stage |= {"optim": {"lr": 1e-3}}
    sojourn.train({**few, "name": "rm", "critic": {"optim": {"lr": 1e-3}}, "stages": [stage]}, out=run, progress=False)
    return run


def recipe(variant: Mapping[str, Any], seed: int, steps: int) -> dict[str, Any]:
    stage: dict[str, Any] = {"name": "rl", "steps": steps, "groups": {"name": "slots", "width": 8, "size": 8}}
    stage |= {"losses": [{"name": "ppo"}], "optim": {"lr": 1e-3}}
    if "critic" in variant:
        stage |= {"losses": [{"name": "ppo"}, *OUTCOMES["losses"]], "streams": OUTCOMES["streams"]}
    return {**HEAD, "name": "learning", "seed": seed, "evaluation": {"tasks": 256}, "stages": [stage], **variant}


def learned(table: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Returns success on held-out tasks before and after a training, and over its steps, what the reward said."""
    run = sojourn.train(table, out=out, progress=False)
    evaluations = run.evaluations()
    rows = [line.values for line in metrics.read(out / "metrics.jsonl") if "success" in line.values]
    return {
        "before": evaluations[0]["success.mean"],
        "after": evaluations[-1]["success.mean"],
        "training_success": [round(values["success"], 3) for values in rows],
        "reward": [round(values["reward"], 3) for values in rows],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--variants", default="")
    parser.add_argument("--folder", type=Path, default=Path("runs/reward-model-learning"))
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    known = variants(reward_model(chosen.folder))
    names = chosen.variants.split(",") if chosen.variants else list(known)
    runs: dict[str, dict[str, Any]] = {name: {} for name in names}
    for seed in map(int, chosen.seeds.split(",")):
        for name in names:
            place = chosen.folder / f"{name.replace(' ', '-').replace('%', '')}-{seed}"
            found = place.with_suffix(".json")
            if not found.exists():
                found.write_text(json.dumps(learned(recipe(known[name], seed, chosen.steps), place)))
            runs[name][str(seed)] = json.loads(found.read_text())
            print(name, seed, runs[name][str(seed)]["after"], flush=True)
    truth = runs.get("truth", {})
    summary = {
        name: {
            "after": interval([one["after"] for one in found.values()]),
            "less_truth": interval([one["after"] - truth[s]["after"] for s, one in found.items() if s in truth]),
        }
        for name, found in runs.items()
    }
    print(json.dumps(summary, indent=1))
    if names == list(known):
        print(write("reward_model_learning", {"summary": summary, "runs": runs}))


if __name__ == "__main__":
    main()
