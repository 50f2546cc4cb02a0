"""Training on the regret-loss: in a repeated matrix game the regret of a model from scratch falls."""

from __future__ import annotations

import numpy as np
import trained_run

from sojourn.record import metrics

RECIPE = """
name = "regret"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "matrix", opponent = "random", rounds = 4, choices = true, neutral = true }
agent = { name = "plain", choices = true }
evaluation = { tasks = 4 }
sampling = { max_tokens = 4 }
rollout = { limits = { turns = 6 } }
reward = { name = "regret", coef = 0.2, base = { name = "native", scale = 0.0 } }
[[stages]]
name = "rl"
steps = 25
groups = { name = "slots", width = 4, size = 8 }
estimator = { name = "regret_loss", k = 2.0 }
losses = [{ name = "ppo" }]
optim = { lr = 5e-3 }
"""


def test_regret_falls(tmp_path):
    run = trained_run.train(tmp_path / "run", recipe=RECIPE)
    regrets = [line.values["part_regret"] for line in metrics.read(run / "metrics.jsonl")]
    assert np.mean(regrets[-5:]) < 0.25 * np.mean(regrets[:5])
