"""A run folder with real checkpoints of a tiny model, made in seconds: it plays badly, but it plays."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sojourn.config import toml
from sojourn.display import Display
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


def train(path: Path, *overrides: str, recipe: str = RECIPE) -> Path:
    file = path.with_name(f"{path.name}.toml")
    file.write_text(recipe)
    resolved = resolve(toml.read(file, overrides))
    with RunFolder.create(path, toml.dump(resolved.table)) as folder, Display(live=False) as display:
        asyncio.run(run_recipe(resolved.recipe, folder, display))
    return path
