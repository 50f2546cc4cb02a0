"""Whether the mean of the weights of a run's last checkpoints does better than the last, or the best by evaluation.

    python benchmarks/learning.py miniwob --seeds 0,1,2 --name kept --keep --with record.keep_every=4
    python benchmarks/averaged.py /tmp/sojourn-learning/miniwob/kept/seed-*/miniwob-* --last 4

Of each run, the last checkpoints that it kept are averaged in fp32, as Izmailov et al. 2018 (arXiv:1803.05407) average
those of a constant learning rate; the result names their steps. The mean, the last and the best weights play the same
held-out tasks, twice as many as the run evaluated, at the run's temperature.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from bakeoff import execute
from safetensors.torch import load_file, save_file
from test_time_search import EVALUATE

from sojourn.record import checkpoint
from sojourn.record.run import RunFolder

WEIGHTS = "weights.safetensors"


def averaged(run: Path, last: int, into: Path) -> list[int]:
    """Copies a run, with one checkpoint, which has the mean of the weights of its last ones. Returns their steps."""
    kept = checkpoint.checkpoints(run / "checkpoints")[-last:]
    shutil.copytree(run, into, ignore=lambda folder, names: ["checkpoints", "blobs", "tokens"])
    tensors = [load_file(one.weights / WEIGHTS) for one in kept]
    mean = {name: torch.stack([one[name].float() for one in tensors]).mean(0) for name in tensors[0]}
    checkpoint.save(into / "checkpoints", kept[-1].step, lambda folder: save_file(mean, folder / WEIGHTS), {})
    return [one.step for one in kept]


def success(run: Path, weights: str) -> dict[str, float]:
    overrides = {"evaluation.tasks": 2 * RunFolder.read(run).config["evaluation"]["tasks"]}
    told = execute([sys.executable, "-c", EVALUATE, f"{run}@{weights}", json.dumps(overrides)])
    found = json.loads(told.splitlines()[-1])["overall"]
    return {"mean": round(found["success"]["mean"], 4), "of": found["episodes"]}


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--last", type=int, default=4, help="checkpoints that are averaged")
    options = parser.parse_args(given)
    for run in map(Path.resolve, options.runs):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "run"
            steps = averaged(run, options.last, copy)
            found = {"averaged": success(copy, "last"), "last": success(run, "last"), "best": success(run, "best")}
        print(json.dumps({"run": str(run), "steps": steps, **found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
