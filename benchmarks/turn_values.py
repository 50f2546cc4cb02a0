"""How near estimators of a turn's worth come to the truth, which is played out many times.

    python benchmarks/turn_values.py        # about a quarter of an hour on one core

A little cloned policy (the warm-up of `tree_learning.py`, toy) plays some tasks: eight plays of each from the start,
and trees of as many leaves. The truth of a turn is what `PLAYS` further plays from after it earn in the mean, less what
as many from before it earn; it has a standard error of its own, which is told. Of each estimator's advantages, in units
of reward: `slope`, by how much they grow with the truth (1: unbiased, less: they see a part of it), `noise`, the
standard deviation of what is left, `correlation` with the truth, and `right`, how often the sign is right where the
truth is not 0 by more than two standard errors, of the turns with an advantage other than 0 (`sure` is their number).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from bakeoff import WARMUP, Job, run
from machine import RESULTS, write
from tree_learning import bakeoff_of

from sojourn.branching.trees import play_trees
from sojourn.branching.uniform import Uniform
from sojourn.commands.evaluate import load_weights
from sojourn.config import toml
from sojourn.credit.gigpo import GiGPO
from sojourn.credit.grpo import GRPO
from sojourn.credit.tree_values import TreeValues
from sojourn.record.run_weights import NamedRun
from sojourn.searchers.ahead import Ahead
from sojourn.searchers.search import JudgedSearch
from sojourn.tasks.listed import listed
from sojourn.train.assemble import Components, assemble
from sojourn.train.resolve import resolve
from sojourn.types import Group, Score, Trajectory, Turn

TASKS, SIZE, PLAYS = 12, 8, 64
RULE = Uniform(every=4, width=2, depth=2, leaves=4)
FLAT = {"grpo": GRPO(scale_by_std=False), "gigpo": GiGPO(scale_by_std=False)}
TREES = {
    "grpo on a tree": GRPO(scale_by_std=False),
    "tree, from the group": TreeValues(against="group"),
    "tree, from the parent": TreeValues(),
    "tree, from siblings": TreeValues(against="siblings"),
    "tree by children, from the parent": TreeValues(value="children"),
}


@dataclass(frozen=True, kw_only=True)
class Truth(JudgedSearch):
    """Takes the turns of a recorded play, and finds before each what plays from there earn: mean and its variance."""

    turns: tuple[Turn, ...] = ()
    found: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]], compare=False)

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        number = len(self.found)
        ends = await ahead.play_all(ahead.root, PLAYS)
        earned = [(await ahead.worth(end))[ahead.name] for end in ends]
        self.found.append((float(np.mean(earned)), float(np.var(earned)) / len(earned)))
        return self.turns[number : number + 1]


async def truth(components: Components, trajectory: Trajectory, group: Group, label: str) -> list[tuple[float, float]]:
    """Returns the advantage of each turn of a play and its variance, by further plays."""
    agent = Truth(base=components.recipe.agent, turns=trajectory.turns, copies=PLAYS)
    runner = replace(components.runner, agent=agent)
    episode = await runner.play_episode(group.task, components.params, label)
    assert episode.trajectories[0].reward == trajectory.reward, "the play took another course"
    after = [*agent.found[1:], (trajectory.reward, 0.0)]
    return [(b - a, va + vb) for (a, va), (b, vb) in zip(agent.found, after, strict=True)]


async def measured(folder: Path) -> dict[str, Any]:
    job = Job(bakeoff_of("toy"), WARMUP, 0)
    run(job, folder)
    recipe = resolve(toml.read(job.place(folder) / "run")).recipe
    pairs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in (*FLAT, *TREES)}
    async with assemble(recipe) as components:
        await load_weights(components, NamedRun.parse(job.place(folder) / "run"))
        tasks = listed(recipe.env, "test")[:TASKS]
        for slot, task in enumerate(tasks):
            params = components.params
            flat = await components.runner.play_group(task, slot, SIZE, params, f"flat/{slot}")
            tree = await play_trees(components.runner, RULE, task, slot, SIZE // RULE.leaves, params, f"tree/{slot}")
            for group, estimators in ((flat, FLAT), (tree, TREES)):
                scores = await components.rewards.reward(group)
                known = [
                    await truth(components, one, group, f"truth/{slot}/{n}") for n, one in enumerate(group.trajectories)
                ]
                for name, estimator in estimators.items():
                    pairs[name] += compared(group, scores, estimator, known)
            print(f"task {slot + 1} of {TASKS}", file=sys.stderr, flush=True)
    return {name: figures(found) for name, found in pairs.items()}


def compared(
    group: Group, scores: Sequence[Score], estimator: Any, known: Sequence[Sequence[tuple[float, float]]]
) -> list[tuple[float, float, float]]:
    """Returns, for each turn that was sampled once, its estimated advantage, the true one and that one's variance."""
    [credits] = estimator([group], [scores], {})
    return [
        (float(credit.tokens[turn].mean()), *known[number][turn])
        for number, (credit, holders) in enumerate(zip(credits, group.holders, strict=True))
        for turn, holder in enumerate(holders)
        if holder == number and len(credit.tokens[turn])
    ]


def figures(found: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    estimate, true, variance = np.array(found).T
    signal = float(true.var() - variance.mean())  # of the truth itself, without the error of its measure
    slope = float(np.cov(estimate, true, bias=True)[0, 1]) / signal
    noise = float(estimate.var() - slope**2 * signal)
    sure = (np.abs(true) > 2 * np.sqrt(variance)) & (np.abs(estimate) > 1e-9)
    return {
        "turns": len(found),
        "truth_std": round(np.sqrt(max(signal, 0.0)), 4),
        "truth_error": round(float(np.sqrt(variance.mean())), 4),
        "mean_error": round(float((estimate - true).mean()), 4),
        "slope": round(slope, 3),
        "noise": round(np.sqrt(max(noise, 0.0)), 4),
        "correlation": round(slope * np.sqrt(signal) / max(float(estimate.std()), 1e-9), 3),
        "right": round(float((np.sign(estimate) == np.sign(true))[sure].mean()), 3),
        "sure": int(sure.sum()),
    }


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="estimators of a turn's worth against the truth")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-trees" / "toy")
    options = parser.parse_args(given)
    options.folder.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(measured(options.folder.resolve()))
    for name, of in found.items():
        print(f"{name:36}{of}")
    print(write("turn_values", {"tasks": TASKS, "size": SIZE, "plays": PLAYS, "of": found}, folder=RESULTS))


if __name__ == "__main__":
    main(sys.argv[1:])
