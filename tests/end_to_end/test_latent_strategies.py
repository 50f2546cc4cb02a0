"""Iterations of latent strategies, regrets and preferences: a model from scratch learns what pays in a game."""

from __future__ import annotations

from pathlib import Path

import trained_run

from sojourn.record.episodes.store import EpisodeStore

RECIPE = """
name = "latent"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "matrix", opponent = "self", rounds = 1, choices = true }
agent = { name = "plain", choices = true }
evaluation = { tasks = 4 }
sampling = { max_tokens = 16 }
rollout = { limits = { turns = 4 } }
[[stages]]
name = "rl"
steps = 4
groups = { name = "slots", width = 2, size = 16 }
estimator = { name = "constant" }
streams = [{ name = "latent_pairs", strategies = 2 }, { name = "ref_logprobs" }]
losses = [{ name = "dpo", beta = 0.5 }]
optim = { lr = 1e-3 }
"""


def defections(run: Path, steps: range) -> float:
    """Returns how often the players of the prisoner's dilemma defected."""
    with EpisodeStore(run) as store:
        groups = [record.group for record in store.records("rl", list(steps))]
    turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
    return sum("defect" in turn.message.text for turn in turns if turn.message is not None) / len(turns)


def test_the_strategy_without_regret_is_played_more_and_more(tmp_path):
    run = trained_run.train(tmp_path / "run", recipe=RECIPE)
    assert defections(run, range(3, 4)) > 0.95 > 0.8 > defections(run, range(1))
