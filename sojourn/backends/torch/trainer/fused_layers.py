"""Decoder layers of Llama's form for the trainer, which use the kernel instead of torch between matrix products.

The products are left to the model's own modules, with their adapters and biases, so that gradients reach all of them.
In the last layer, keys and values are computed for all nodes, and everything else only for the nodes whose hidden
states are requested.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from sojourn.backends.torch.kernels import gradients
from sojourn.backends.torch.models.loading import LLAMA_LIKE
from sojourn.backends.torch.sampler.c_decoder import window_of
from sojourn.backends.torch.trainer import activations
from sojourn.backends.torch.trainer.tree_attention import TreeMask


def fuse(model: Any) -> bool:
    """Replaces the forward pass of the model's layers by one that uses the kernel, where the kernel supports their
    form; returns whether it does."""
    if not _fits(model):
        return False
    layers = activations.layers_of(model.get_decoder())
    for layer in layers:
        layer.forward = partial(_layer_forward, layer, layer is layers[-1])
    return True


def _fits(model: Any) -> bool:
    config = model.config
    plain = config.model_type in LLAMA_LIKE and config.hidden_act == "silu" and not config.attention_dropout
    fp32_on_cpu = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
    if not (plain and fp32_on_cpu):
        return False
    return _kernel(activations.layers_of(model.get_decoder())[0].self_attn) is not None


def _layer_forward(
    layer: Any,
    last: bool,
    hidden: torch.Tensor,  # (1, Q, H) of the nodes that are computed here
    *,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    tree_mask: TreeMask,
    **unused: Any,
) -> torch.Tensor:
    """Returns the layer's hidden states (1, Q, H); of the last layer those of the rows that `tree_mask` requests:
    (1, R, H)."""
    attention, mlp = layer.self_attn, layer.mlp
    input_norm, mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
    kernel = _kernel(attention)
    assert kernel is not None, "fuse() checks that there is one"
    rows, requested = hidden[0], tree_mask.rows if last else None
    normed = kernel.norm(rows, input_norm.weight, input_norm.variance_epsilon)
    attended = _attended(kernel, attention, normed, position_embeddings, tree_mask, requested)
    rows = rows if requested is None else rows.index_select(0, requested)
    rows, normed = kernel.add_norm(rows, attention.o_proj(attended), mlp_norm.weight, mlp_norm.variance_epsilon)
    return (rows + mlp.down_proj(kernel.silu_gate(mlp.gate_proj(normed), mlp.up_proj(normed))))[None]


def _attended(
    kernel: gradients.TrainerKernel,
    attention: Any,
    normed: torch.Tensor,  # (Q, H)
    position_embeddings: tuple[torch.Tensor, torch.Tensor],  # cosines and sines
    tree_mask: TreeMask,
    requested: torch.Tensor | None,  # (R,) rows, or None for all
) -> torch.Tensor:
    """Returns the attention of the requested rows: (R, heads * head)."""
    query_rows = normed if requested is None else normed.index_select(0, requested)
    sources = {"q": query_rows, "k": normed, "v": normed}
    query, key, value = (
        getattr(attention, f"{part}_proj")(rows).unflatten(-1, (-1, kernel.key)) for part, rows in sources.items()
    )
    if hasattr(attention, "q_norm"):
        query = kernel.norm(query, attention.q_norm.weight, attention.q_norm.variance_epsilon)
        key = kernel.norm(key, attention.k_norm.weight, attention.k_norm.variance_epsilon)
    tables = [table[0] for table in position_embeddings]
    key = kernel.rotate(key, *tables)
    query_tables = tables if requested is None else [table.index_select(0, requested) for table in tables]
    query = kernel.rotate(query, *query_tables)
    key, value = tree_mask.gather(key, value)
    mask = tree_mask.block_mask(kernel, window_of(attention), last=requested is not None)
    return kernel.attend(query, key, value, mask, attention.scaling).flatten(1)


def _kernel(attention: Any) -> gradients.TrainerKernel | None:
    return gradients.load(attention.head_dim, attention.head_dim, attention.num_key_value_groups)
