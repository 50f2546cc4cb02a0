"""Ten SIGKILLs at random moments: does a resumed run end with the weights of one that was never interrupted?

    python benchmarks/kills.py [seed of the moments]

A small toy run (fp32, both stages, a checkpoint every third step) is killed ten times, each time after a random part
of a fresh run's duration, and resumed; then it may finish. Its weights are compared bit for bit with those of an
uninterrupted run, and its recorded groups are counted.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import write
from safetensors.numpy import load_file

from sojourn.record import checkpoint, metrics
from sojourn.record.episodes.store import EpisodeStore

KILLS = 10
OVERRIDES = [
    "model.name=tiny:layers=1,hidden=64",
    "backend.threads=1",
    "evaluation.tasks=16",
    "record.checkpoint_every=3",
    "stages.warmup.steps=40",
    "stages.warmup.groups.distinct_tasks=64",
    "stages.rl.steps=12",
    "stages.rl.groups.width=6",
]
TRAIN = [sys.executable, "-m", "sojourn", "train"]


def start(out: Path, resume: bool) -> subprocess.Popen[bytes]:
    command = (
        [*TRAIN, "--resume", str(out)] if resume else [*TRAIN, "recipes/toy/train.toml", "--out", str(out), *OVERRIDES]
    )
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def position(out: Path) -> str:
    path = out / "metrics.jsonl"
    lines = list(metrics.read(path)) if path.exists() else []
    return f"{lines[-1].stage} {lines[-1].step + 1}" if lines else "before the first step"


def weights(out: Path) -> dict[str, np.ndarray]:
    found = checkpoint.latest(out / "checkpoints")
    assert found is not None
    return load_file(found.weights / "weights.safetensors")


def recorded(out: Path) -> dict[str, int]:
    with EpisodeStore(out) as store:
        slots = [group.slot for group in store.groups("rl")]
    return {"groups": len(slots), "distinct_slots": len(set(slots))}


def measure(folder: Path, seed: int) -> dict[str, Any]:
    whole, killed = folder / "whole", folder / "killed"
    began = time.monotonic()
    if start(whole, resume=False).wait() != 0:
        raise SystemExit("the uninterrupted run failed: see its message above")
    duration, rng, moments = time.monotonic() - began, random.Random(seed), []
    for _ in range(KILLS):
        process = start(killed, resume=(killed / "config.toml").exists())
        try:
            if process.wait(rng.uniform(0.05, 0.5) * duration) != 0:
                raise SystemExit("a resumed run failed: see its message above")
            moments.append("it had ended")
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            moments.append(position(killed))
    if start(killed, resume=True).wait() != 0:
        raise SystemExit("the killed run could not be resumed: see its message above")
    one, other = weights(whole), weights(killed)
    same = one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    return {
        "kills": sum(moment != "it had ended" for moment in moments),
        "killed_after": moments,
        "same_weights_bit_for_bit": bool(same),
        "recorded": {"uninterrupted": recorded(whole), "killed": recorded(killed)},
        "seconds_uninterrupted": round(duration, 1),
    }


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else int(time.time())
    with tempfile.TemporaryDirectory() as folder:
        figures = {"seed": seed, **measure(Path(folder), seed)}
    print(write("kills", figures), figures)
    raise SystemExit(0 if figures["same_weights_bit_for_bit"] else 1)
