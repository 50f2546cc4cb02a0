"""Decoder layers of Llama's form for the trainer, with the kernel's functions instead of torch's between products.

The products are left to the model's own modules, with their adapters and biases, so that gradients reach all of them.
In the last layer, all but keys and values is computed only for the nodes whose hidden state is asked for.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from sojourn.backends.torch.kernels import gradients
from sojourn.backends.torch.sampler.c_decoder import FORMS, window_of
from sojourn.backends.torch.trainer import activations
from sojourn.backends.torch.trainer.tree_attention import TreeMask


def fuse(model: Any) -> bool:
    """Lets the model's layers compute by the kernel, where it knows their form; returns whether it does."""
    if not _fits(model):
        return False
    layers = activations.layers_of(model.get_decoder())
    for layer in layers:
        layer.forward = partial(_pass, layer, layer is layers[-1])
    return True


def _fits(model: Any) -> bool:
    config = model.config
    plain = config.model_type in FORMS and config.hidden_act == "silu" and not config.attention_dropout
    here = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
    if not (plain and here):
        return False
    return _kernel(activations.layers_of(model.get_decoder())[0].self_attn) is not None


def _pass(
    layer: Any,
    last: bool,
    hidden: torch.Tensor,  # (1, M, H)
    *,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    tree_mask: TreeMask,
    **unused: Any,
) -> torch.Tensor:
    """Returns the layer's hidden states (1, M, H); of the last layer (1, R, H), for the rows that `tree_mask` asks
    for."""
    attention, mlp = layer.self_attn, layer.mlp
    before, between = layer.input_layernorm, layer.post_attention_layernorm
    own = _kernel(attention)
    assert own is not None, "fuse() asks whether there is one"
    rows, asked = hidden[0], tree_mask.rows if last else None
    seen = _attended(
        own, attention, own.norm(rows, before.weight, before.variance_epsilon), position_embeddings, tree_mask, asked
    )
    rows = rows if asked is None else rows.index_select(0, asked)
    rows, normed = own.add_norm(rows, attention.o_proj(seen), between.weight, between.variance_epsilon)
    return (rows + mlp.down_proj(own.silu_gate(mlp.gate_proj(normed), mlp.up_proj(normed))))[None]


def _attended(
    own: gradients.Gradients,
    attention: Any,
    normed: torch.Tensor,  # (M, H)
    angles: tuple[torch.Tensor, torch.Tensor],
    tree_mask: TreeMask,
    asked: torch.Tensor | None,  # (R,) nodes, or all
) -> torch.Tensor:
    """Returns what the nodes asked for attend to: (R, heads * head)."""
    looking = normed if asked is None else normed.index_select(0, asked)
    sources = {"q": looking, "k": normed, "v": normed}
    query, key, value = (
        getattr(attention, f"{part}_proj")(rows).unflatten(-1, (-1, own.key)) for part, rows in sources.items()
    )
    if hasattr(attention, "q_norm"):
        query = own.norm(query, attention.q_norm.weight, attention.q_norm.variance_epsilon)
        key = own.norm(key, attention.k_norm.weight, attention.k_norm.variance_epsilon)
    tables = [table[0] for table in angles]
    key = own.rotate(key, *tables)
    query = own.rotate(query, *(tables if asked is None else [table.index_select(0, asked) for table in tables]))
    mask = tree_mask.block_mask(own, window_of(attention), last=asked is not None)
    return own.attend(query, key, value, mask, attention.scaling).flatten(1)


def _kernel(attention: Any) -> gradients.Gradients | None:
    return gradients.load(attention.head_dim, attention.head_dim, attention.num_key_value_groups)
