"""What weights are of another model is said before anything is loaded, for every kind of model that can be trained."""

from __future__ import annotations

from pathlib import Path

import exported_run
import pytest
from spawned import sojourn

from sojourn.backends.torch.models.fitting import check_weights
from sojourn.errors import ModelError
from sojourn.models.spec import Lora, Model
from sojourn.record.run_weights import find_weights


def weights_of(run: Path) -> Path:
    found = find_weights(run, "").checkpoint
    assert found is not None
    return found.weights


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2", "phi"])
@pytest.mark.filterwarnings("ignore:fan_in_fan_out")  # of peft, about gpt2
@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_weights_fit_their_own_model_and_no_other(tmp_path, family, lora):
    base = exported_run.base(tmp_path / "base", family)
    options = [] if lora is None else ["model.lora={rank=2}"]
    run, _, _ = exported_run.run(tmp_path / "run", f"model.name={base}", *options)
    own = Model(name=str(base), lora=lora, weights="runs/x")
    check_weights(own, weights_of(run))
    with pytest.raises(ModelError, match=r"model.weights = 'runs/x' is of a model with \d+ layers of width"):
        check_weights(Model(name="tiny:layers=9,hidden=320", lora=lora, weights="runs/x"), weights_of(run))
    told = "adapters of rank 2, and this recipe trains" if lora else "all weights of a model, and this recipe trains"
    with pytest.raises(ModelError, match=told):
        check_weights(Model(name=str(base), lora=Lora(rank=3), weights="runs/x"), weights_of(run))


def test_dry_refuses_weights_of_another_model(trained, tmp_path):
    words = ("train", str(trained), f"model.weights={trained}@warmup", "--dry")
    assert sojourn(tmp_path, *words).returncode == 0
    done = sojourn(tmp_path, *words, "model.name=tiny:layers=2,hidden=64")
    assert done.returncode == 2
    assert (
        "is of a model with 1 layers of width 64, and 'tiny:layers=2,hidden=64' has 2 layers of width 64" in done.stderr
    )
    assert len(done.stderr.strip().splitlines()) == 1
