"""Trains tiny models from scratch on tasks of independent parts, in one context or with a sub-agent for each part.

    python benchmarks/sub_agents.py                                  # both worlds
    python benchmarks/sub_agents.py --world long                     # one of them
    python benchmarks/sub_agents.py --seeds 0 --tokens 40000         # a short one
    python benchmarks/sub_agents.py --dry                            # builds every recipe, runs nothing

Worlds (`locks.py`): `short`, two locks of three dials, which fit into one context with room to spare; `long`, four
locks of six, whose messages have 20 words at random, and half of whose dials have the colour of their lock, which is
told at its first dial. A context has 704 tokens there, which hold no whole play: an agent that keeps all in one is cut
off after about 17 of 24 dials.

Variants: `one`, an agent whose context has the whole episode (GRPO); `window`, the same with the last two exchanges in
its context; `sub_agents`, a main agent that may call a sub-agent for the next lock, or act itself (M-GRPO; one model
for both); in the long world also `roomy`, `one` with a context of 2,048 tokens. The main agent has no instruction to
delegate: it learns whether to.

All sample as many tokens: a variant trains until its own and its sub-agents' tokens reach those of the world, or
`--tokens`, calls and results included, so that one with calls plays fewer episodes. What is measured is the mean reward
of the tasks of the test split at the end, 1 where all dials are turned rightly; chance is 1/4. `curve` has the mean
reward in training by tenths of the tokens. In `sub_agents` the main agent gets what its calls earn (`rewards =
"both"`), so that its reward is that of the whole episode. All variants have the same learning rate, which was chosen
for the long world on two runs of `sub_agents` of other seeds.

Measured in the short world on five seeds: one context 0.996 [0.992, 1.001], a window of two exchanges 0.976 [0.945,
1.007], with sub-agents 0.451 [0.366, 0.537], still getting better on four of them. Of 1,657 calls in the evaluations
31% are at the beginning of a lock, about what chance gives; within one, neither knows which dials the other saw, and
part of them can only be guessed. In the long world on five seeds: one context 0.361 [0.254, 0.467], with sub-agents
0.764 [0.647, 0.881], which call one for each of the four locks (3.99 to 4.01 calls a play). What one context lacks is
room: with three times as much (`roomy`) it came to 0.801 and 0.692 (seeds 0 and 1), as much as with sub-agents.

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
CHOOSES = {"name": "plain", "choices": True}


class World(NamedTuple):
    """A world, with the tokens that a training samples in it, and those of a context (0: as many as can be)."""

    env: Mapping[str, Any]
    tokens: int
    context: int
    lr: float
    result: str

    @property
    def variants(self) -> dict[str, dict[str, Any]]:
        """Returns what each variant has instead of the recipe's keys."""
        worker = {
            "instruction": "Open this lock.",
            "description": "Opens the next lock.",
            "world": "acts",
            "turns": self.env["dials"],
            "tasks": ["open it"],
            "results": ["open"],
            "base": CHOOSES,
        }
        delegating = {"name": "delegating", "rewards": "both", "base": CHOOSES, "sub_agents": {"worker": worker}}
        one = {"agent": CHOOSES, "estimator": {"name": "grpo"}}
        return {
            "one": one,
            "window": {**one, "agent": {**CHOOSES, "history": "window", "turns": 2}},
            "sub_agents": {"agent": delegating, "estimator": {"name": "mgrpo"}, "aggregate": {"by": "seat"}},
            **({"roomy": {**one, "backend": {"max_context": ROOMY}}} if self.context else {}),
        }


ROOMY = 2048  # tokens, which hold every play
SHORT = {"name": "benchmarks.locks:Locks", "locks": 2, "dials": 3}
LONG = {"name": "benchmarks.locks:LongLocks", "locks": 4, "dials": 6, "words": 20}
WORLDS = {
    "short": World(SHORT, tokens=600_000, context=0, lr=1e-4, result="sub_agents"),
    "long": World(LONG, tokens=1_000_000, context=704, lr=1e-3, result="sub_agents_long"),
}


class Job(NamedTuple):
    world: str
    variant: str
    seed: int
    tokens: int

    def tables(self) -> toml.Tables:
        recipe, world = toml.read(RECIPE), WORLDS[self.world]
        more = dict(world.variants[self.variant])
        [stage] = recipe.data["stages"]
        agent, backend = more.pop("agent"), dict(recipe.data["backend"])
        if world.context:
            backend |= {"max_context": world.context, **more.pop("backend", {})}
        groups = {"name": "slots", "width": 8, "size": 8}
        stage = {**stage, **more, "steps": 100_000, "groups": groups, "early_stop": {"tokens": self.tokens}}
        stage["optim"] = {**stage["optim"], "lr": world.lr}
        limits = {"limits": {"turns": 4 * world.env["locks"] * world.env["dials"]}}
        rollout = {**recipe.data["rollout"], **limits}
        changed = {"env": world.env, "agent": agent, "backend": backend, "rollout": rollout, "seed": self.seed}
        return replace(recipe, data={**recipe.data, **changed, "stages": [stage]})

    def place(self, folder: Path) -> Path:
        return folder / self.world / f"{self.tokens}" / self.variant / f"seed-{self.seed}"


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
    print(f"{job.world}, {job.variant}, seed {job.seed}: {found}", file=sys.stderr, flush=True)
    return found


def compared(jobs: Sequence[Job], known: Runs, of: World, tokens: int, folder: Path, workers: int) -> dict[str, Any]:
    """Returns the figures, of known runs and new ones: of each variant, the mean reward over seeds with its interval,
    and all runs."""
    found = made(jobs, lambda job: measured(job, folder), workers)
    figures: dict[str, Any] = {"tokens": tokens, "variants": {}}
    for variant, runs in joined(known, found, list(of.variants)).items():
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
    parser.add_argument("--world", choices=WORLDS, action="append", help="(default: both)")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=list(SEEDS))
    parser.add_argument(
        "--variants", type=lambda text: text.split(","), default=[], metavar="A,B", help="(default: all)"
    )
    parser.add_argument("--tokens", type=int, default=0, help="sampled tokens of each training (default: the world's)")
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, of one thread each")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-sub-agents")
    parser.add_argument("--add", action="store_true", help="add to the result: what it has is not made again")
    parser.add_argument("--dry", action="store_true", help="build every recipe, run nothing")
    options = parser.parse_args(given)
    if options.add and options.tokens:
        parser.error(
            f"--add with --tokens {options.tokens}: the results have runs of the worlds' tokens: leave one out"
        )
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.world or WORLDS:
        world = WORLDS[name]
        variants, tokens = options.variants or list(world.variants), options.tokens or world.tokens
        if unknown := set(variants) - set(world.variants):
            parser.error(f"no variant {sorted(unknown)[0]}: choose among {', '.join(world.variants)}")
        if options.dry:
            for variant in variants:
                resolve(Job(name, variant, 0, tokens).tables())
                print(f"{name}: {variant} can be built")
            continue
        known = recorded(world.result) if options.add else {}
        whole = variants == list(world.variants) and set(options.seeds) >= set(SEEDS) and tokens >= world.tokens
        jobs = [Job(name, variant, seed, tokens) for variant, seed in missing(known, variants, options.seeds)]
        figures = compared(jobs, known, world, tokens, options.folder.resolve(), options.workers)
        print(told(figures), flush=True)
        print(write(world.result, figures, folder=RESULTS if whole or options.add else options.folder))


if __name__ == "__main__":
    main(sys.argv[1:])
