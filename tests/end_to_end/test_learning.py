"""Reinforcement learns on held-out tasks from its own episodes, and it is the credit that does it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sojourn.config import toml
from sojourn.credit.grpo import GRPO
from sojourn.display import Display
from sojourn.record.run import RunFolder
from sojourn.record.summary import Summary
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe
from sojourn.types import Credit

RECIPE = """
name = "learn"
[model]
name = "tiny:layers=1"
dtype = "fp32"
[env]
name = "toy"
rooms = 2
side_rooms = 0
decoys = 2
objects = 0
choices = true
[agent]
name = "plain"
choices = true
[sampling]
max_tokens = 8
[rollout]
concurrency = 128
[rollout.limits]
turns = 5
[evaluation]
tasks = 192
[[stages]]
name = "rl"
steps = 10
groups = { name = "slots", width = 16, size = 8 }
losses = [{ name = "ppo", clip_high = 0.28 }]
optim = { lr = 3e-4 }
"""


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """The advantages of GRPO, each given to some other episode of the step."""

    needs = frozenset[str]()

    def __call__(self, groups, scores, streams) -> list[list[Credit]]:
        honest = GRPO(scale_by_std=False)(groups, scores, streams)
        gains = np.array([credit.tokens[0][0] for judged in honest for credit in judged])
        given = iter(np.random.default_rng(len(groups)).permutation(gains))
        return [[Credit.uniform(t, float(next(given))) for t in group.trajectories] for group in groups]


def learn(folder: Path, estimator: str) -> Sequence[Summary]:
    """The evaluations before and after."""
    path = folder / "recipe.toml"
    path.write_text(RECIPE)
    resolved = resolve(toml.read(path, [f"stages.rl.estimator={estimator}"]))
    with RunFolder.create(folder / "run", toml.dump(resolved.table)) as run, Display(live=False) as display:
        found = asyncio.run(run_recipe(resolved.recipe, run, display))
    return [found["before"], found["rl"]]


@pytest.mark.parametrize(
    ("estimator", "learns"), [("{name='grpo', scale_by_std=false}", True), ("{name='test_learning:Shuffled'}", False)]
)
def test_it_learns_unless_the_credit_is_shuffled(tmp_path, estimator, learns):
    before, after = (evaluation.overall.success for evaluation in learn(tmp_path, estimator))
    assert before.mean < 0.5
    assert (after.low > before.high) == learns
