"""Trains tiny models from scratch on a task of two independent parts, in one context or with a sub-agent for each part.

    python benchmarks/sub_agents.py                                  # all
    python benchmarks/sub_agents.py --seeds 0 --tokens 40000         # a short one
    python benchmarks/sub_agents.py --dry                            # builds every recipe, runs nothing

Variants: `one`, an agent whose context has the whole episode (GRPO); `window`, the same with the last two exchanges in
its context; `sub_agents`, a main agent that may call a sub-agent for the next lock, or act itself (M-GRPO; one model
for both). The main agent has no instruction to delegate: it learns whether to.

All sample as many tokens: a variant trains until its own and its sub-agents' tokens reach `--tokens`, calls and
results included, so that one with calls plays fewer episodes. What is measured is the mean reward of the tasks of the
test split at the end, 1 where all dials are turned rightly; chance is 1/4. `curve` has the mean reward in training by
tenths of the tokens. In `sub_agents` the main agent gets what its calls earn (`rewards = "both"`), so that its reward
is that of the whole episode. Learning rates are equal, and not tuned to any variant.

Measured on five seeds: one context 0.996 [0.992, 1.001], a window of two exchanges 0.976 [0.945, 1.007], with
sub-agents 0.451 [0.366, 0.537], still getting better on four of them. The world fits into one context, and calls and
results cost tokens. Of 1,657 calls in the evaluations 31% are at the beginning of a lock, about what chance gives;
within one, neither knows which dials the other saw, and part of them can only be guessed.

Trainings go on where they were killed; what is finished stays in `--folder`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bakeoff import HERE, Runs, in_units, interval, joined, made, missing, recorded, trained
from machine import RESULTS, write

from sojourn.config import toml
from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.train.resolve import resolve

RECIPE = HERE / "sub_agents.toml"
SEEDS = range(5)
TOKENS = 600_000
CHOOSES = {"name": "plain", "choices": True}
WORKER = {
    "instruction": "Open this lock.",
    "description": "Opens the next lock.",
    "world": "acts",
    "turns": 3,
    "tasks": ["open it"],
    "results": ["open"],
    "base": CHOOSES,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "one": {"agent": CHOOSES, "estimator": {"name": "grpo"}},
    "window": {"agent": {**CHOOSES, "history": "window", "turns": 2}, "estimator": {"name": "grpo"}},
    "sub_agents": {
        "agent": {"name": "delegating", "rewards": "both", "base": CHOOSES, "sub_agents": {"worker": WORKER}},
        "estimator": {"name": "mgrpo"},
        "aggregate": {"by": "seat"},
    },
}


class Job(NamedTuple):
    variant: str
    seed: int
    tokens: int

    def tables(self) -> toml.Tables:
        recipe, more = toml.read(RECIPE), dict(VARIANTS[self.variant])
        [stage] = recipe.data["stages"]
        agent = more.pop("agent")
        stop = {"tokens": self.tokens}
        groups = {"name": "slots", "width": 8, "size": 8}
        stages = [{**stage, **more, "steps": 100_000, "groups": groups, "early_stop": stop}]
        return replace(recipe, data={**recipe.data, "agent": agent, "seed": self.seed, "stages": stages})

    def place(self, folder: Path) -> Path:
        return folder / f"{self.tokens}" / self.variant / f"seed-{self.seed}"


def measured(job: Job, folder: Path) -> dict[str, Any]:
    """Returns the mean reward of the last evaluation's episodes, of the agent in the seat, and what it took."""
    run = trained(job.place(folder), job.tables())
    with EpisodeStore(run) as store:
        episodes = [episode for group in store.groups("evaluation-rl") for episode in group.episodes]
    totals = [episode.trajectories[0].reward for episode in episodes]
    lines = [line.values for line in metrics.read(run / "metrics.jsonl")]
    spent = np.cumsum([values["sampled_tokens"] for values in lines])
    parts = [np.flatnonzero((spent > a * job.tokens) & (spent <= (a + 0.1) * job.tokens)) for a in np.arange(10) / 10]
    found = {
        "reward": round(float(np.mean(totals)), 4),
        "success": round(float(np.mean([episode.trajectories[0].success for episode in episodes])), 4),
        "calls": round(float(np.mean([len(episode.trajectories) - 1 for episode in episodes])), 3),
        "steps": len(lines),
        "tokens": round(float(spent[-1])),
        "curve": [round(float(np.mean([lines[n]["reward"] for n in part])), 3) for part in parts if len(part)],
    }
    print(f"{job.variant}, seed {job.seed}: {found}", file=sys.stderr, flush=True)
    return found


def compared(jobs: Sequence[Job], known: Runs, tokens: int, folder: Path, workers: int) -> dict[str, Any]:
    """Returns the figures, of known runs and new ones: of each variant, the mean reward over seeds with its interval,
    and all runs."""
    found = made(jobs, lambda job: measured(job, folder), workers)
    figures: dict[str, Any] = {"tokens": tokens, "variants": {}}
    for variant, runs in joined(known, found, list(VARIANTS)).items():
        mean = interval([one["reward"] for one in runs.values()])
        figures["variants"][variant] = {"mean": mean, "runs": runs}
    return figures


def told(figures: Mapping[str, Any]) -> str:
    lines = [f"mean reward after {figures['tokens']} sampled tokens"]
    for variant, of in figures["variants"].items():
        lines.append(f"  {variant:10} {in_units(of['mean'])}")
    return "\n".join(lines)


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="one context against sub-agents, at the same sampled tokens")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=list(SEEDS))
    parser.add_argument("--variants", type=lambda text: text.split(","), default=list(VARIANTS), metavar="A,B")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="sampled tokens of each training")
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, of one thread each")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-sub-agents")
    parser.add_argument("--add", action="store_true", help="add to the result: what it has is not made again")
    parser.add_argument("--dry", action="store_true", help="build every recipe, run nothing")
    options = parser.parse_args(given)
    if unknown := set(options.variants) - set(VARIANTS):
        parser.error(f"no variant {sorted(unknown)[0]}: choose among {', '.join(VARIANTS)}")
    if options.dry:
        for variant in options.variants:
            resolve(Job(variant, 0, options.tokens).tables())
            print(f"{variant} can be built")
        return
    if options.add and options.tokens != TOKENS:
        parser.error(f"--add with --tokens {options.tokens}: the result has runs of {TOKENS} tokens: leave one out")
    known = recorded("sub_agents") if options.add else {}
    whole = options.variants == list(VARIANTS) and set(options.seeds) >= set(SEEDS) and options.tokens >= TOKENS
    options.folder.mkdir(parents=True, exist_ok=True)
    jobs = [Job(variant, seed, options.tokens) for variant, seed in missing(known, options.variants, options.seeds)]
    figures = compared(jobs, known, options.tokens, options.folder.resolve(), options.workers)
    print(told(figures), flush=True)
    print(write("sub_agents", figures, folder=RESULTS if whole or options.add else options.folder))


if __name__ == "__main__":
    main(sys.argv[1:])
