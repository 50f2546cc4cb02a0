"""A policy that cloned its own episodes, good and bad, with the returns that they got, gets what it is asked for."""

import asyncio
from pathlib import Path

import sojourn
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


WHITENED = "{name = 'whitened', base = {name = 'reinforce', baseline = 'none'}}"
BALANCED = (
    "agent.name=balance_conditioned",
    "agent.balances=[0.0, 3.0]",
    "stages.clone.groups={name = 'with_balances', base = {name = 'earlier', stage = 'collect', width = 16}}",
    "stages.clone.steps=100",
    f"stages.clone.estimator={{name = 'awr', scale = 'balance', base = {WHITENED}}}",
)


def success(path: Path, *overrides: str) -> float:
    """The success on held-out tasks of a run with these overrides."""
    file = path.with_suffix(".toml")
    file.write_text(RECIPE)
    resolved = resolve(toml.read(file, overrides))
    with RunFolder.create(path, toml.dump(resolved.table)) as folder, Display(live=False) as display:
        found = asyncio.run(run_recipe(resolved.recipe, folder, display))
    return found["clone"].overall.success.mean


def test_what_is_asked_for_is_what_it_gets(tmp_path: Path):
    """In the second of two turns the treasure is taken or left: chance takes it in half of all episodes."""
    assert success(tmp_path / "one", "agent.target=1.0") > 0.85
    assert success(tmp_path / "none", "agent.target=0.0") < 0.15


def test_a_family_is_trained_once_and_asked_for_its_members(tmp_path: Path):
    """At 0 it does what was recorded, of which 71% succeeded; at 3 actions of what succeeded weigh most."""
    success(tmp_path / "family", *BALANCED)
    family = tmp_path / "family"
    none, most = (
        sojourn.evaluate(family, progress=False, **{"agent.balance": b}).overall.success.mean for b in (0.0, 3.0)
    )
    assert most > 0.9
    assert none < most - 0.1
