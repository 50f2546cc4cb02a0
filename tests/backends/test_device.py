"""Where trainer and sampler work."""

import pytest
import torch

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
    assert {p.device for p in opened.trainer.model.parameters()} == {device_of(name)}
    assert opened.trainer.passes.device == device_of(name)
    await opened.sampler.close()
    opened.trainer.close()
