"""Loads and builds the critic that a config names."""

from __future__ import annotations

from typing import Any

import torch

from sojourn.backends.torch.models import deferred, loading, lora
from sojourn.backends.torch.trainer.critic import Critic, Head
from sojourn.backends.torch.trainer.decoder import Decoder
from sojourn.errors import ModelError
from sojourn.models import spec


def load(
    critic: spec.Critic, policy: loading.Loaded, seed: int, max_context: int, *, defer: bool
) -> loading.Loaded | None:
    """Loads the critic's own model, if any. Raises `ModelError` where it does not read what the policy does."""
    if not critic.model:
        return None
    loaded = loading.load(critic.model, "fp32", seed, critic.revision, defer=defer)
    if loaded.tokenizer is None:
        raise ModelError(
            f"critic.model = '{critic.model}' has no tokenizer: expected that of '{policy.name}', whose tokens it "
            "would read: put its tokenizer.json beside the weights"
        )
    if loaded.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise ModelError(
            f"critic.model = '{critic.model}': its tokenizer is not that of '{policy.name}', whose tokens it "
            "would read: use a model of the same family"
        )
    if loaded.max_context < min(max_context, policy.max_context):
        raise ModelError(
            f"critic.model = '{critic.model}' reads at most {loaded.max_context} tokens: set backend.max_context "
            "to that, or use another model"
        )
    deferred.move(loaded.model, next(policy.model.parameters()).device)
    return loaded


def build(
    critic: spec.Critic,
    policy: loading.Loaded,
    own: loading.Loaded | None,
    dtype: Any,
    frozen: Any,
    *,
    kernel: bool,
    activation_bytes: float,
) -> Critic:
    """Builds a critic: a head on the policy, or on a model of its own, whose weights have the type `frozen` where they
    are not trained."""
    trained, decoder = None, None
    if own is not None:
        trained = own.model if critic.lora is None else lora.adapted(own.model, critic.lora, frozen)
        decoder = Decoder(trained, bf16=dtype == torch.bfloat16, kernel=kernel, activation_bytes=activation_bytes)
    head = Head((own or policy).model.config.get_text_config().hidden_size, critic.hidden)
    head.to(next(policy.model.parameters()).device)
    return Critic(head, critic.optim, detach=critic.detach and own is None, model=trained, decoder=decoder)
