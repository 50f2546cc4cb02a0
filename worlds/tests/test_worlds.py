"""Every world that comes with Sojourn is trained in: demonstrations where it has an expert, then a step of RL."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from sojourn.config.lookup import find, names
from sojourn.config.registry import build
from sojourn.config.toml import Tables, dump
from sojourn.display import Display
from sojourn.envs.about import About
from sojourn.errors import MissingExtraError
from sojourn.record import metrics
from sojourn.record.run import RunFolder
from sojourn.rollout.limits import Limits
from sojourn.sources.play_abilities import PlayAbilities
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe


def can_be_made(cls: Any) -> bool:
    """Without being told which server, program, environment or files to take."""
    told = any(f.default is f.default_factory is dataclasses.MISSING for f in dataclasses.fields(cls) if f.init)
    return bool(cls.about.smallest) or not (told or cls.__module__.startswith("sojourn_worlds.adapters."))


KNOWN = {name: find("env", name) for name in names("env")}
WORLDS = [name for name, cls in KNOWN.items() if hasattr(cls, "about") and can_be_made(cls)]
WARMUP = {
    "name": "warmup", "steps": 1, "groups": {"name": "experts", "width": 1, "distinct_tasks": 1, "success_only": False},
    "estimator": {"name": "constant"}, "losses": [{"name": "nll"}],
}  # fmt: skip
RL = {
    "name": "rl", "steps": 2, "groups": {"name": "slots", "width": 1, "size": 2},
    "losses": [{"name": "ppo"}, {"name": "entropy"}],
}  # fmt: skip


def fields(name: str) -> dict[str, object]:
    about: About = find("env", name).about
    return {"name": name, **about.smallest}


def table(name: str, expert: bool, choices: bool) -> dict[str, object]:
    return {
        "name": name,
        "model": {"name": "tiny:layers=1,hidden=64,context=16384", "dtype": "fp32"},
        "env": fields(name) | ({"choices": True} if choices else {}),
        "backend": {"name": "torch", "max_context": 16384},
        "agent": {"name": "plain", "choices": choices},
        "sampling": {"max_tokens": 400},
        "rollout": {"limits": {"turns": 4}, "retries": 0},
        "evaluation": {"tasks": 1},
        "stages": [WARMUP, RL] if expert else [RL],
    }


@pytest.mark.parametrize("name", WORLDS)
def test_a_policy_trains_in_it(name: str, tmp_path: Path) -> None:
    try:
        family = build("env", fields(name)).value
        choices = "choices" in {field.name for field in dataclasses.fields(family)}
        expert = asyncio.run(_has_expert(family))
    except MissingExtraError as error:
        pytest.skip(str(error))
    resolved = resolve(Tables(table(name, expert, choices)))
    with RunFolder.create(tmp_path / "run", dump(resolved.table)) as folder, Display(live=False) as display:
        asyncio.run(run_recipe(resolved.recipe, folder, display))
    steps = [line.values for line in metrics.read(tmp_path / "run" / "metrics.jsonl") if line.stage == "rl"]
    assert len(steps) == 2
    for values in steps:
        assert values["errors"] == 0
        assert values["episodes"] >= 2
        assert 0 < values["grad_norm"] < math.inf  # of the entropy, if nothing was won


async def _has_expert(family) -> bool:
    if hasattr(family, "open"):
        await family.open()
    try:
        return not await PlayAbilities(family, Limits()).lacking("expert")
    finally:
        if hasattr(family, "close"):
            await family.close()
