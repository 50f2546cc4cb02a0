"""Where trainer and sampler work."""

import pytest
import torch
import trained_run

from sojourn.backends.torch.backend import Torch, compute_dtype, device_of
from sojourn.errors import ModelError
from sojourn.models.spec import Model
from sojourn.render.auto import Auto


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_a_device_that_is_not_there_is_refused_before_a_run_begins():
    with pytest.raises(ModelError, match=r"backend\.device"):
        Torch(device="cuda").check(Model(name="tiny"))
    assert device_of("auto") == torch.device("cpu")


def test_a_dtype_that_is_named_is_used_on_any_device():
    for device in (torch.device("cpu"), torch.device("cuda")):
        assert compute_dtype("bf16", device) == torch.bfloat16
        assert compute_dtype("fp32", device) == torch.float32


@pytest.mark.parametrize("name", ["auto", "cpu"])
async def test_trainer_and_sampler_are_on_the_device(name):
    opened = Torch(device=name).open(Model(name="tiny:layers=1,hidden=64"), Auto(), 0)
    assert {p.device.type for p in opened.trainer.model.parameters()} == {device_of(name).type}
    assert opened.trainer.passes.device.type == device_of(name).type
    await opened.sampler.close()
    opened.trainer.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CPU always gives the same bits")
def test_a_cuda_device_gives_the_same_bits_if_asked_to(tmp_path):
    options = ("backend.deterministic=true", "stages.warmup.steps=4", "stages.rl.steps=3")
    one, other = (trained_run.train(tmp_path / name, *options) for name in ("one", "other"))
    assert trained_run.weight_bytes(one) == trained_run.weight_bytes(other)
