"""A run that learns from recorded and from simulated episodes, whose losses weigh the latter by their dynamics."""

import pytest
from trained_run import RECIPE, train

from sojourn.config import toml
from sojourn.errors import ConfigError
from sojourn.record import metrics
from sojourn.train.resolve import resolve

HYBRID = (
    RECIPE[: RECIPE.index("[[stages]]")]
    + """
[critic]
optim = { lr = 1e-3 }
[[stages]]
name = "collect"
steps = 1
trains = false
groups = { name = "slots", width = 4, size = 2 }
[[stages]]
name = "hybrid"
steps = 3
estimator = { name = "turn_gae", lam = 0.0 }
streams = [{ name = "values" }, { name = "next_values" }, { name = "dynamics_ratio", real = ["earlier"] }]
losses = [
    { name = "weighted", stream = "dynamics_ratio", base = { name = "ppo" } },
    { name = "weighted", stream = "dynamics_ratio", base = { name = "value" } },
]
[stages.groups]
name = "mixed"
parts = [{ name = "slots", width = 2, size = 2 }, { name = "earlier", stage = "collect", width = 2 }]
"""
)


def refusal(tmp_path, old, new) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(HYBRID.replace(old, new))
    with pytest.raises(ConfigError) as refused:
        resolve(toml.read(path, []))
    return str(refused.value)


def test_policy_and_critic_learn_with_the_weight_of_the_dynamics(tmp_path):
    train(tmp_path / "run", recipe=HYBRID)
    lines = [line.values for line in metrics.read(tmp_path / "run" / "metrics.jsonl") if line.stage == "hybrid"]
    assert lines[0]["dynamics_ratio_weight"] == 1  # nothing is known of the dynamics yet
    assert all(0 < line["dynamics_ratio_weight"] <= 1 for line in lines)
    assert lines[-1]["dynamics_ratio_weight"] < 1
    assert lines[0]["dynamics_ratio_simulated"] == 1
    assert all(line["dynamics_ratio_error"] > 0 and "value_error" in line for line in lines)


def test_origins_that_no_source_gives_and_a_base_that_is_there_twice_are_refused(tmp_path):
    assert "DynamicsRatio names the origin 'folder'" in refusal(tmp_path, ', real = ["earlier"]', "")
    assert "losses has Value twice" in refusal(tmp_path, '{ name = "ppo" }', '{ name = "value" }')
