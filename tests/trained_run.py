"""A run folder with real checkpoints of a tiny model, made in seconds: it plays badly, but it plays."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import spawned
from numpy.typing import NDArray
from safetensors.numpy import load_file

from sojourn.config import toml
from sojourn.display import Display
from sojourn.record import checkpoint
from sojourn.record.run import RunFolder
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe

RECIPE = """
name = "trained"
[model]
name = "tiny:layers=1,hidden=64"
dtype = "fp32"
[backend]
name = "torch"
threads = 1
[env]
name = "toy"
rooms = 2
choices = true
[agent]
name = "plain"
choices = true
[sampling]
max_tokens = 8
[rollout.limits]
turns = 4
[evaluation]
tasks = 2
[[stages]]
name = "warmup"
steps = 1
groups = { name = "experts", width = 2, distinct_tasks = 2, success_only = false }
estimator = { name = "constant" }
losses = [{ name = "nll" }]
[[stages]]
name = "rl"
steps = 1
groups = { name = "slots", width = 1, size = 2 }
losses = [{ name = "ppo" }]
"""

KILLED = """
import os, signal, sys
import sojourn.train.run as run
from sojourn.cli import main

record = run.StageRun._record

async def dies(self, step, result):
    await record(self, step, result)
    if (self.stage.name, step) == ("rl", 1):
        os.kill(os.getpid(), signal.SIGKILL)  # while the step is being written, after the checkpoint of the one before

run.StageRun._record = dies
main()
"""  # the command, in a process that kills itself

TIMED = ("seconds", "_per_s", "sampler_", "memory")  # in the names of metrics that tell of the machine


def train(path: Path, *overrides: str, recipe: str = RECIPE) -> Path:
    file = path.with_name(f"{path.name}.toml")
    file.write_text(recipe)
    resolved = resolve(toml.read(file, overrides))
    with RunFolder.create(path, toml.dump(resolved.table)) as folder, Display(live=False) as display:
        asyncio.run(run_recipe(resolved.recipe, folder, display))
    return path


def killed_and_resumed(
    path: Path, *overrides: str, recipe: str = RECIPE, environment: Mapping[str, str] | None = None
) -> Path:
    """Trains as `train` does, but by commands: the first kills itself in the middle of the step 1 of the stage `rl`."""
    file = path.with_name(f"{path.name}.toml")
    file.write_text(recipe)
    words = ["train", str(file), "--out", str(path), *overrides]
    spawned.killed(KILLED, path.parent, *words, environment=environment)
    spawned.resumed(path, environment)
    return path


def final_weights(run: Path) -> dict[str, NDArray[np.float32]]:
    """Returns the weights of the policy in the newest checkpoint of a run."""
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    return load_file(found.weights / "weights.safetensors")


def weight_bytes(run: Path) -> dict[str, bytes]:
    """Returns the bytes of those weights, which tell 0 from -0."""
    return {name: np.ascontiguousarray(value).tobytes() for name, value in final_weights(run).items()}


def untimed(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics that the machine has no part in."""
    return {name: value for name, value in metrics.items() if not any(part in name for part in TIMED)}
