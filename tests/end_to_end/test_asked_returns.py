"""A policy that cloned its own episodes, good and bad, with the returns that they got, gets what it is asked for."""

import asyncio
from pathlib import Path

from sojourn.config import toml
from sojourn.display import Display
from sojourn.record.run import RunFolder
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe

RECIPE = """
name = "asked"
[model]
name = "tiny:layers=1"
dtype = "fp32"
[env]
name = "toy"
rooms = 2
side_rooms = 0
doors = 0
decoys = 0
objects = 0
choices = true
[agent]
name = "return_conditioned"
base = { name = "plain", choices = true }
[sampling]
max_tokens = 8
[rollout.limits]
turns = 2
[evaluation]
tasks = 64
every = 0
[[stages]]
name = "collect"
steps = 1
trains = false
losses = []
groups = { name = "slots", width = 64, size = 2 }
[[stages]]
name = "clone"
steps = 12
groups = { name = "with_returns", base = { name = "earlier", stage = "collect", width = 16 } }
estimator = { name = "constant" }
losses = [{ name = "nll" }]
optim = { lr = 2e-3 }
"""


def success(path: Path, target: float) -> float:
    """The success on held-out tasks of a run whose agent asks for a return."""
    file = path.with_suffix(".toml")
    file.write_text(RECIPE)
    resolved = resolve(toml.read(file, [f"agent.target={target}"]))
    with RunFolder.create(path, toml.dump(resolved.table)) as folder, Display(live=False) as display:
        found = asyncio.run(run_recipe(resolved.recipe, folder, display))
    return found["clone"].overall.success.mean


def test_what_is_asked_for_is_what_it_gets(tmp_path: Path):
    """In the second of two turns the treasure is taken or left: chance takes it in half of all episodes."""
    assert success(tmp_path / "one", 1.0) > 0.85
    assert success(tmp_path / "none", 0.0) < 0.15
