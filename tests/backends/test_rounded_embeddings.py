"""In bf16 the trainer looks embeddings up as the sampler does: rounded, with a gradient to what was rounded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_models import build

from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.types import Batch


def one_sequence() -> Batch:
    tokens, zeros = np.random.default_rng(0).integers(4, 97, 24), np.zeros(24, dtype=np.float32)
    weight, none = np.r_[0, np.ones(23)].astype(np.float32), np.zeros(24, dtype=np.int64)
    return Batch(tokens, none, weight, zeros, zeros + 1, zeros + 1, none, np.where(weight > 0, 0, -1))


@pytest.mark.parametrize("kernel", [False, True])
def test_embeddings_are_rounded_in_bf16_alone(kernel):
    batch = one_sequence()
    for bf16 in (False, True):
        passes = ModelPasses(build("qwen2"), bf16=bf16, token_budget=4096, kernel=kernel)
        weights = passes.model.get_input_embeddings().weight
        before = passes.score(batch, frozenset(), batch.tokens).logprobs
        with torch.no_grad():
            weights.copy_(weights.bfloat16().float())
        after = passes.score(batch, frozenset(), batch.tokens).logprobs
        assert np.array_equal(before, after) == bf16


def test_the_gradient_of_a_rounded_embedding_reaches_its_weights():
    passes, batch = ModelPasses(build("qwen2"), bf16=True, token_budget=4096), one_sequence()
    (micro_batch,) = next(passes.rounds(batch))
    where = micro_batch.where
    out = passes.forward(micro_batch, where, frozenset(), batch.tokens[where])
    (gradient,) = torch.autograd.grad(out.logprobs.sum(), [passes.model.get_input_embeddings().weight])
    assert np.count_nonzero(gradient.abs().sum(1).numpy()) == len(np.unique(batch.tokens[:-1]))
