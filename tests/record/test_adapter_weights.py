"""Adapters of a run go on from where they were trained: by the same alpha, over the same base."""

from __future__ import annotations

import exported_run
import pytest

from sojourn.config import toml
from sojourn.errors import RecordError
from sojourn.train.resolve import resolve
from sojourn.train.weights import found_weights

LORA = "model.lora={rank=2, alpha=64.0}"


def found(run, *overrides):
    return found_weights(resolve(toml.read(run, [f"model.weights={run}", *overrides])).recipe)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    return exported_run.run(tmp_path_factory.mktemp("adapters") / "run", LORA, "seed=3")[0]


def test_adapters_go_on_by_their_own_alpha_and_seed(adapters):
    assert found(adapters) is not None
    with pytest.raises(RecordError, match=r"trained with model.lora.alpha = 64.0, and this recipe has 32.0.*: set"):
        found(adapters, "model.lora.alpha=32.0")
    with pytest.raises(RecordError, match=r"trained with seed = 3, and this recipe has 4"):
        found(adapters, "seed=4")


def test_adapters_go_on_over_their_own_base_alone(tmp_path):
    run = exported_run.run(tmp_path / "run", LORA, f"model.name={exported_run.base(tmp_path / 'base', 'llama')}")[0]
    assert found(run, "seed=4") is not None
    (run / "models.json").write_text('{"policy": "sha256 of edges 0123"}')
    with pytest.raises(
        RecordError, match=r"trained with model.name = .* \(sha256 of edges 0123\), and this recipe has"
    ):
        found(run)


def test_all_weights_of_a_run_go_on_whatever_the_seed(tmp_path):
    run = exported_run.run(tmp_path / "run")[0]
    assert found(run, "seed=4") is not None
