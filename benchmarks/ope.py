"""Compares what off-policy evaluation predicts of ten checkpoints with how well they do.

    python benchmarks/ope.py                     # trains, plays and predicts: some minutes on one core
    python benchmarks/ope.py --run runs/ope-...  # predicts again from a run of this recipe

`ope.toml` clones a tiny model a little, so that it wins about a quarter of its plays, and then goes on in ten stages.
After each, the checkpoint plays the same held-out tasks several times: that is the truth. The episodes that one of the
checkpoints played then (`--behaviour`) are all that the predictions of the others are made from.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from machine import result, write

from sojourn import threads
from sojourn.intervals import proportion
from sojourn.ope.of_run import predict_run, recorded_groups
from sojourn.ope.predict import METHODS
from sojourn.record.run_weights import find_weights

HERE = Path(__file__).parent
STAGES = [f"more{number}" for number in range(10)]
SHOWN = ("recorded", "is", "wis", "fitted", "dr", "wdr")
NAME = "ope"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run of ope.toml, instead of a new one")
    parser.add_argument("--behaviour", default="more1", choices=STAGES, help="whose episodes predictions are made from")
    arguments = parser.parse_args(words)
    sys.path.insert(0, str(HERE.parent))  # where the world of the recipe is
    threads.prepare(1)
    run = arguments.run or train()
    figures = compare(run, arguments.behaviour)
    write(NAME, figures, "scipy")
    draw(figures, result(f"{NAME}.png"))


def train() -> Path:
    """Trains the recipe in a folder of its own, and returns that of the run."""
    import sojourn

    return sojourn.train(HERE / "ope.toml", out=Path(tempfile.mkdtemp(prefix="ope-")) / "run").path


def compare(run: Path, behaviour: str) -> dict[str, Any]:
    """Returns the truth and the predictions of each checkpoint, and each method's error over them."""
    from sojourn.train.resolve import load

    recipe, records = load(run).recipe, recorded_groups(run, f"evaluation-{behaviour}")
    rows = {}
    for stage in STAGES:
        [prediction] = asyncio.run(predict_run(recipe, [find_weights(run, stage).checkpoint], records))
        truth = played(run, stage)
        rows[stage] = {
            "true": truth,
            "predicted": {name: [e.mean, e.low, e.high] for name, e in prediction.estimates.items()},
            "effective": prediction.effective,
        }
        said = ", ".join(f"{name} {estimate.mean:.2f}" for name, estimate in prediction.estimates.items())
        print(f"{stage}: true {truth[0]:.2f}, {said}", flush=True)
    others = [row for stage, row in rows.items() if stage != behaviour]
    return {
        "behaviour": behaviour,
        "episodes": sum(len(record.group.trajectories) for record in records),
        "checkpoints": rows,
        "errors": {name: errors(others, name) for name in METHODS},
    }


def played(run: Path, stage: str) -> list[float]:
    """Returns how often a checkpoint succeeded, with the interval."""
    groups = [record.group for record in recorded_groups(run, f"evaluation-{stage}")]
    plays = [(t.success, group.task.id) for group in groups for t in group.trajectories]
    found = proportion([won for won, _ in plays], [task for _, task in plays])
    return [found.mean, found.low, found.high]


def errors(rows: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Returns the root mean squared error of a method, how often its interval overlaps that of the truth, and the rank
    correlation with it."""
    from scipy.stats import spearmanr

    true, predicted = np.array([row["true"] for row in rows]), np.array([row["predicted"][name] for row in rows])
    overlap = (predicted[:, 1] <= true[:, 2]) & (predicted[:, 2] >= true[:, 1])
    same = len(set(predicted[:, 0].tolist())) == 1
    return {
        "rmse": float(np.sqrt(np.mean((predicted[:, 0] - true[:, 0]) ** 2))),
        "overlapping": float(overlap.mean()),
        "rank_correlation": 0.0 if same else float(np.asarray(spearmanr(true[:, 0], predicted[:, 0]))[0]),
    }


def draw(figures: dict[str, Any], out: Path) -> None:
    """Draws a panel for each method: predicted over true success, with 95% intervals of both."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), dpi=110, layout="constrained")
    rows = figures["checkpoints"]
    for panel, name in zip(figure.subplots(2, 3, sharex=True, sharey=True).flat, SHOWN, strict=True):
        panel.plot([0, 1], [0, 1], color="0.7", lw=1)
        for stage, row in rows.items():
            (x, *x_ends), (y, *y_ends) = row["true"], row["predicted"][name]
            colour = "#c05621" if stage == figures["behaviour"] else "#2b6cb0"
            panel.plot(x_ends, [y, y], color=colour, lw=1, alpha=0.6)
            panel.plot([x, x], np.clip(y_ends, -0.05, 1.2), color=colour, lw=1, alpha=0.6)
            panel.plot([x], [y], "o", color=colour, ms=4)
        panel.set_title(f"{METHODS[name]}: RMSE {figures['errors'][name]['rmse']:.3f}", fontsize=9)
        panel.set_xlim(0, 1)
        panel.set_ylim(0, 1.05)
        panel.grid(alpha=0.25)
    figure.supxlabel("true success of a checkpoint", fontsize=9)
    figure.supylabel("predicted", fontsize=9)
    figure.suptitle(
        f"predicted from {figures['episodes']} episodes of one checkpoint (orange), 95% intervals", fontsize=10
    )
    figure.savefig(out)


if __name__ == "__main__":
    main()
