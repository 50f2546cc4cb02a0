"""A run uses the splits that its recipe names, and no other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from made_world import Odd

from sojourn.commands.train import check_buildable
from sojourn.config import toml
from sojourn.errors import ConfigError
from sojourn.tasks import Generated
from sojourn.train.group_checks import check_groups
from sojourn.train.resolve import resolve
from sojourn.types import Task

RECIPE = f"""
name = "split"
model = {{ name = "tiny:layers=1,hidden=64", dtype = "fp32" }}
env.name = "{__name__}:Held"
curriculum = {{ split = "test" }}
[[stages]]
name = "warmup"
groups = {{ name = "experts" }}
estimator = {{ name = "constant" }}
losses = [{{ name = "nll" }}]
[[stages]]
name = "rl"
losses = [{{ name = "ppo" }}]
streams = [{{ name = "information_gain", task_key = "answer" }}]
estimator = {{ name = "igpo" }}
"""


@dataclass(frozen=True, kw_only=True)
class Held(Odd):
    """Has tasks in one split alone, whose data are those that a stream reads."""

    split: str = "test"

    def tasks(self, split: str):
        data = {"answer": "yes"}
        return Generated(lambda index: Task("odd", data, index, split), self.count if split == self.split else 0)


def check(folder: Path, *overrides: str) -> None:
    (folder / "recipe.toml").write_text(RECIPE)
    recipe = resolve(toml.read(folder / "recipe.toml", overrides)).recipe
    check_buildable(recipe)
    asyncio.run(check_groups(recipe))


def test_a_world_without_train_tasks_can_be_trained_on_another_split(tmp_path: Path):
    check(tmp_path)


@pytest.mark.parametrize("key", ["curriculum", "evaluation"])
def test_a_split_that_is_used_and_has_no_tasks_is_refused(tmp_path: Path, key: str):
    with pytest.raises(ConfigError, match="the split 'train' of the world has no tasks"):
        check(tmp_path, f"{key}.split=train")
