"""Adds low-rank adapters to a model, and merges them into its weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from sojourn.backends.torch.models import deferred
from sojourn.backends.torch.trainer.decoder import base_of
from sojourn.errors import ModelError


def adapted(model: Any, lora: Any, dtype: Any) -> Any:
    """Adds low-rank adapters in fp32 to a model, whose own weights are frozen and converted to `dtype`. Raises
    `ModelError` where peft would adapt what is no linear layer."""
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import Linear as LoraLinear
    from peft.tuners.lora import LoraLayer

    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear", bias="none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about how peft uses transformers, which is out of our hands
        adapted = get_peft_model(deferred.move(model, dtype=dtype), config)
    layers = ((name, one) for name, one in base_of(adapted).named_modules() if isinstance(one, LoraLayer))
    if odd := next((name for name, one in layers if not isinstance(one, LoraLinear)), ""):
        raise ModelError(
            f"model.lora: peft adapts '{odd}' of a model of the kind '{base_of(adapted).config.model_type}', which is "
            "no linear layer, and samplers take adapters of linear layers alone: leave lora out, or use another model"
        )
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32)
    return adapted


@torch.no_grad()
def merged(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the weights with the adapters merged in, by their names in the bare transformers model. Of a sharded model
    they are those that are gathered."""
    base = base_of(model)
    adapted = _adapted_layers(base)
    for name, parameter in base.named_parameters():
        if ".lora_" in name or isinstance(parameter, DTensor):
            continue
        weight, name = parameter.detach(), name.replace(".base_layer.", ".")
        if layer := adapted.get(name):
            weight = weight + layer.get_delta_weight(layer.active_adapters[0]).to(weight.dtype)
        yield name, weight


def _adapted_layers(base: Any) -> dict[str, Any]:
    """Returns the layers with adapters by the names of their weights. Where there is none, peft is not imported."""
    if not any(".lora_" in name for name, _ in base.named_parameters()):
        return {}
    from peft.tuners.lora import Linear as LoraLinear

    return {f"{name}.weight": layer for name, layer in base.named_modules() if isinstance(layer, LoraLinear)}
