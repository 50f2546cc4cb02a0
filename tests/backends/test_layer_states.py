"""The residual stream after a layer is that of transformers' own pass, whoever computes the layers."""

import numpy as np
import pytest
import torch
from engine_models import build
from made import batch as made_batch

from sojourn.backends.torch.trainer.model_passes import ModelPasses

LAYERS = 3


@pytest.mark.parametrize("budget", [4096, 30], ids=["one micro-batch", "several"])
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_states_after_each_layer(family, kernel, budget):
    model, batch = build(family), made_batch(np.random.default_rng(0), vocabulary=97)
    indices = np.flatnonzero(batch.weight)[::2] - 1
    expected = np.zeros((LAYERS, len(batch), 48), dtype=np.float32)

    def keep(layer):
        def hook(_module, _given, output):
            hidden = output if isinstance(output, torch.Tensor) else output[0]
            expected[layer, a:b] = hidden[0].numpy()

        return hook

    decoder = model.get_decoder()
    hooks = [one.register_forward_hook(keep(n)) for n, one in enumerate(getattr(decoder, "layers", None) or decoder.h)]
    with torch.no_grad():
        for a, b in zip(batch.offsets, batch.offsets[1:], strict=False):
            model(torch.from_numpy(batch.tokens[a:b])[None])
    for hook in hooks:
        hook.remove()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    passes = ModelPasses(model, bf16=False, token_budget=budget, kernel=kernel)
    try:
        for layer in range(LAYERS):
            np.testing.assert_allclose(passes.hidden_states(batch, indices, layer), expected[layer, indices], atol=2e-4)
        last = passes.hidden_states(batch, indices)
        assert np.abs(last - expected[-1, indices]).max() > 0.01  # which has the last norm
    finally:
        passes.close()
        torch.set_num_threads(before)
