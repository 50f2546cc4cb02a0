"""A run that is resumed between the stages: what the curriculum learned from the evaluations until then is not lost."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trained_run

from sojourn.config import toml
from sojourn.display import Display
from sojourn.record.checkpoint import checkpoints
from sojourn.record.run import RunFolder
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe
from sojourn.types import Group, Score, Task

HEAD = trained_run.RECIPE.partition("[[stages]]")[0]
RECIPE = f"""{HEAD}
[curriculum]
name = "test_observed_evaluations:Follows"
[[stages]]
name = "rl"
steps = 1
groups = {{ name = "slots", width = 1, size = 2 }}
losses = [{{ name = "ppo" }}]
[[repeats]]
stages = ["rl"]
rounds = 3
"""


@dataclass(frozen=True, kw_only=True)
class Follows:
    """A curriculum whose tasks follow from all evaluations that it was shown."""

    split: str = "train"

    def bind(self, tasks: Sequence[Task], seed: int) -> Following:
        return Following(tasks)


@dataclass
class Following:
    tasks: Sequence[Task]
    shown: list[list[float]] = field(default_factory=list)  # for each evaluation, the rewards of its episodes

    def draw(self, slot: int, redraw: int = 0) -> Task:
        return self.tasks[10 * len(self.shown) + slot + redraw]

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        pass

    def observe_evaluation(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        assert [group.task.split for group in groups] == ["test"] * 2
        self.shown.append([score.total for judged in scores for score in judged])

    def state(self) -> Mapping[str, Any]:
        return {"shown": self.shown}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.shown = [list(rewards) for rewards in state["shown"]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run.train(tmp_path_factory.mktemp("observed") / "run", recipe=RECIPE)


def seen(run: Path) -> list[list[list[float]]]:
    """What the curriculum had been shown at each checkpoint that is left."""
    return [saved.state()["parts"]["curriculum"]["shown"] for saved in checkpoints(run / "checkpoints")]


@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("evaluated", [False, True], ids=["before its evaluation", "after its evaluation"])
def test_a_run_killed_between_stages_shows_every_evaluation_once(
    whole: Path, tmp_path: Path, kept: int, evaluated: bool
) -> None:
    assert [len(shown) for shown in seen(whole)] == [1, 2, 3]
    killed = tmp_path / "run"
    shutil.copytree(whole, killed)
    for saved in checkpoints(killed / "checkpoints")[kept:]:
        shutil.rmtree(saved.path)
    with RunFolder.open(killed) as folder:
        folder.write_json("evaluations.json", folder.evaluations()[: kept + evaluated])
    with RunFolder.open(killed) as folder, Display(live=False) as display:
        asyncio.run(run_recipe(resolve(toml.read(killed)).recipe, folder, display, resume=True))
    assert seen(killed) == seen(whole)
    assert trained_run.weight_bytes(killed) == trained_run.weight_bytes(whole)
