"""What a tree of plays costs beside as many plays from the start: tokens, turns of the world, and seconds.

    python benchmarks/branches.py [toy] [shop]

The recipe's policy after a short warm-up plays the same tasks twice, with a learning rate of 0: `LEAVES` plays of each
from its start, and two that fork until they are as many. Figures are medians over `STEPS` steps. `sampled` are tokens
that the engine drew, `prefilled` those of prompts that it computed, and `prefixes` the least of these: the distinct
beginnings of all that was seen, but for tokens that were computed as they were drawn, which the last of a turn is not.
`same_prompts` are turns whose whole prompt another turn of the step had: its last token is computed again, as the next
one is drawn from what follows it. `computed` are the tokens that the trainer computed, and `distinct` the least of
these. `world` are turns that the world took. All plays are trained, whatever they earned.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import write

from sojourn.batch.flatten import flatten
from sojourn.batch.share import merge
from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Group

STEPS = 6
ROOTS, LEAVES = 2, 16
WORLDS: dict[str, list[str]] = {  # long plays, and how far apart their forks are
    "toy": ["stages.warmup.steps=100", "env.rooms=4", "env.doors=3", "rollout.limits.turns=16"],
    "shop": ["stages.warmup.steps=6"],
}
EVERY = {"toy": 4, "shop": 2}
FLAT = f"stages.rl.groups.size={LEAVES}"


def forks(every: int) -> list[str]:
    rule = f"{{name='uniform', every={every}, width=2, depth=3, leaves={LEAVES // ROOTS}}}"
    return [f"stages.rl.groups.size={ROOTS}", f"stages.rl.groups.branching={rule}"]


def measure(name: str, ways: Sequence[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        settings = [
            *WORLDS[name],
            *ways,
            f"stages.rl.steps={1 + STEPS}",
            "stages.rl.groups.width=4",
            "stages.rl.optim.lr=0.0",
            "stages.rl.estimator={name='constant'}",
            "evaluation.tasks=1",
            "evaluation.every=0",
            "record.drift_groups=0",
        ]
        command = [sys.executable, "-m", "sojourn", "train", f"recipes/{name}/train.toml", "--out", str(out)]
        subprocess.run([*command, *settings], check=True, stdout=sys.stderr)
        steps = [line for line in metrics.read(out / "metrics.jsonl") if line.stage == "rl"][1:]
        with EpisodeStore(out) as store:
            played = list(store.records("rl"))
    found: list[dict[str, float]] = []
    for line in steps:
        groups = [record.group for record in played if record.step == line.step]
        found.append({**counted(groups), **{key: line.values[of] for key, of in METRICS.items()}})
    return {key: round(statistics.median(one[key] for one in found), 2) for key in found[0]}


METRICS = {
    "plays": "episodes",
    "sampled": "sampled_tokens",
    "prefilled": "sampler_prefill_tokens",
    "computed": "computed_tokens",
    "success": "success",
    "seconds_sample": "seconds_sample",
    "seconds_train": "seconds_train",
    "seconds_step": "seconds_step",
}


def counted(groups: Sequence[Group]) -> dict[str, float]:
    """Returns the least that a step's plays need: distinct beginnings, in all and of prompts, and the world's turns."""
    batch, spans = flatten(groups)
    tree = merge(batch)
    places = {(span.start, span.stop) for span in spans}
    drawn = np.unique(np.concatenate([tree.node[start : stop - 1] for start, stop in places]))
    inner = np.unique(np.delete(tree.node, batch.offsets[1:] - 1))  # nodes that any token follows
    ends = np.unique([tree.node[stop - 1] for _, stop in places])
    unread = np.setdiff1d(ends, np.union1d(inner, drawn))
    return {
        "turns": sum(len(t.turns) for group in groups for t in group.trajectories),
        "world": len(places),
        "distinct": len(tree.tokens),
        "prefixes": len(tree.tokens) - len(drawn) - len(unread),
        "same_prompts": len(places) - len({int(tree.node[start - 1]) for start, _ in places}),
    }


def main(names: Sequence[str]) -> None:
    figures: dict[str, Any] = {}
    for name in names:
        flat, tree = measure(name, [FLAT]), measure(name, forks(EVERY[name]))
        ratios = {key: round(tree[key] / flat[key], 3) for key in flat if flat[key]}
        figures[name] = {"flat": flat, "tree": tree, "tree over flat": ratios}
        print(f"{name}: {ratios}", file=sys.stderr)
    print(write("branches", figures))


if __name__ == "__main__":
    main(sys.argv[1:] or ["toy"])
