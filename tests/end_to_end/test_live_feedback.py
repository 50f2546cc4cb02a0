"""A policy learns from what its user says next, in a world that pays nothing; hints in hindsight teach it besides."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from judge_server import judging, text

from sojourn.config import toml
from sojourn.display import Display
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.summary import Summary
from sojourn.rewards.hints import hints_of
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe

RECIPE = """
name = "live"
model = { name = "tiny:layers=1", dtype = "fp32" }
env = { name = "talking_world:Talking" }
agent = { name = "plain", history = "page", choices = true }
sampling = { max_tokens = 8 }
rollout = { concurrency = 128 }
evaluation = { tasks = 128 }
reward = { name = "next_state", hints = true }
[[stages]]
name = "rl"
steps = 12
groups = { name = "slots", width = 96, size = 1 }
losses = [{ name = "ppo", clip_low = 0.2, clip_high = 0.28 }]
optim = { lr = 1e-3 }
"""
TURN = "{name='reinforce', discount=0.0, baseline='none'}"
EVALUATIVE = ("reward.hints=false", f"stages.rl.estimator={TURN}")
HINTS = "stages.rl.streams=[{name='hindsight_hint'}]"
BOTH = (HINTS, f"stages.rl.estimator={{name='teacher_kl', stream='hindsight_hint', coef=0.1, base={TURN}}}")
SHORT = ("stages.rl.steps=2", "stages.rl.groups.width=4", "evaluation.tasks=2")


def learn(folder: Path, *overrides: str) -> Mapping[str, Summary]:
    """The evaluations of a run."""
    path = folder / "recipe.toml"
    path.write_text(RECIPE)
    resolved = resolve(toml.read(path, overrides))
    with RunFolder.create(folder / "run", toml.dump(resolved.table)) as run, Display(live=False) as display:
        return asyncio.run(run_recipe(resolved.recipe, run, display))


@pytest.mark.parametrize("signals", [EVALUATIVE, BOTH], ids=["evaluative", "both"])
def test_it_learns_from_what_its_user_says_next(tmp_path, signals):
    found = learn(tmp_path, *signals)
    before, after = found["before"].overall.success, found["rl"].overall.success
    assert before.high < after.low


def test_a_judge_behind_a_server_gives_votes_and_hints_and_all_is_recorded(tmp_path):
    def says(body: dict[str, Any]) -> dict[str, str]:
        told = text(body).partition("what came after it begins")[2]
        wanted = re.search(r"wanted: (\w+)", told)
        return {"verdict": "bad", "hint": f"They want {wanted[1]}."} if wanted else {"verdict": "good", "hint": ""}

    with judging(says) as (url, asked):
        endpoint = f"models={{judge={{endpoint={{base_url='{url}', model='big'}}}}}}"
        reward = "reward={name='next_state', judged_by='model', model='judge', hints=true}"
        learn(tmp_path, *BOTH, *SHORT, endpoint, reward)
    with EpisodeStore(tmp_path / "run") as store:
        records = [store.read(row) for row in store.query(stage="rl")]
    assert len(records) == 8
    for record in records:
        [trajectory], [score] = record.episode.trajectories, record.scores
        said = [turn.observed[0].text for turn in trajectory.turns[1:]]
        assert score.turns.tolist() == [-1.0 if one.startswith("No") else 1.0 for one in said] + [0.0]
        wanted = {n: f"They want {one[14:].partition('.')[0]}." for n, one in enumerate(said) if one.startswith("No")}
        assert hints_of(score) == wanted
        assert len(record.asked) == 9  # three votes on each turn that something came after
    assert any(hints_of(record.scores[0]) for record in records)
    assert len(asked) > 0
