"""Whether the mean of the weights of a run's last checkpoints does better than the last, or the best by evaluation.

    python benchmarks/learning.py miniwob --seeds 0,1,2 --name kept --keep --with record.keep_every=4
    python benchmarks/averaged.py /tmp/sojourn-learning/miniwob/kept/seed-*/run --last 4

Of each run, the last checkpoints of its last stage are averaged in fp32, as Izmailov et al. 2018 (arXiv:1803.05407)
average those of a constant learning rate. The mean, the last and the best weights play the same held-out tasks, twice
as many as the run evaluated, at the run's temperature.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch
from bakeoff import execute
from safetensors.torch import load_file, save_file

from sojourn.record import checkpoint

WEIGHTS = "weights/weights.safetensors"
EVALUATE = """
import json, sys, sojourn
tasks = 2 * sojourn.open(sys.argv[1]).config["evaluation"]["tasks"]
print(json.dumps(sojourn.evaluate("@".join(sys.argv[1:]), progress=False, **{"evaluation.tasks": tasks}).to_json()))
"""


def averaged(run: Path, last: int, into: Path) -> list[int]:
    """Copies a run, its newest checkpoint alone, with the mean of the weights of its last checkpoints in it. Returns
    their steps."""
    kept = checkpoint.checkpoints(run / "checkpoints")[-last:]
    shutil.copytree(run, into, ignore=lambda folder, names: ["checkpoints", "blobs", "tokens"])
    target = into / "checkpoints" / kept[-1].path.name
    shutil.copytree(kept[-1].path, target, ignore=lambda folder, names: ["optimizer.safetensors", "best"])
    tensors = [load_file(one.path / WEIGHTS) for one in kept]
    mean = {name: torch.stack([one[name].float() for one in tensors]).mean(0) for name in tensors[0]}
    save_file(mean, target / WEIGHTS)
    manifest = json.loads((target / "checkpoint.json").read_text())
    for name in [name for name in manifest["files"] if not (target / name).exists()]:
        del manifest["files"][name], manifest["crc32"][name]
    data = (target / WEIGHTS).read_bytes()
    manifest["files"][WEIGHTS], manifest["crc32"][WEIGHTS] = len(data), zlib.crc32(data)
    (target / "checkpoint.json").write_text(json.dumps(manifest))
    return [one.step for one in kept]


def success(run: Path, weights: str) -> dict[str, float]:
    found = json.loads(execute([sys.executable, "-c", EVALUATE, str(run), weights]).splitlines()[-1])["overall"]
    return {"mean": round(found["success"]["mean"], 4), "of": found["episodes"]}


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--last", type=int, default=4, help="checkpoints that are averaged")
    options = parser.parse_args(given)
    for run in options.runs:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "run"
            steps = averaged(run, options.last, copy)
            found = {"averaged": success(copy, "last"), "last": success(run, "last"), "best": success(run, "best")}
        print(json.dumps({"run": str(run), "steps": steps, **found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
