"""The decoder of Llama with fewer, larger operations: the same weights, the same numbers to rounding.

At small batches a step through transformers' modules spends as long between operations as in them. Here queries, keys
and values are one product, gate and up another, and no module is called. The fused matrices are the storage of the
model's own parameters, which become views of them: what is written into one is in the other. Any model that is not
plainly of this form goes through transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu

from sojourn.backends.torch.attention import Plan, over_cache

Forward = Callable[[torch.Tensor, Plan, torch.Tensor], torch.Tensor]


def build(model: Any) -> Forward | None:
    """The fused forward of a model of this form, or None."""
    config = model.config
    if config.model_type != "llama" or config.hidden_act != "silu" or config.attention_bias or config.mlp_bias:
        return None
    if any(type(module) is not torch.nn.Linear for name, module in model.named_modules() if name.endswith("_proj")):
        return None
    return FusedLlama(model)


class FusedLayer(NamedTuple):
    before_attention: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    before_mlp: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    scaling: float


class FusedLlama:
    def __init__(self, model: Any) -> None:
        config = model.config
        self._model = model
        self._eps = config.rms_norm_eps
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head = model.model.layers[0].self_attn.head_dim
        self._layers = [self._fused(layer) for layer in model.model.layers]

    def _fused(self, layer: Any) -> FusedLayer:
        attention, mlp = layer.self_attn, layer.mlp
        return FusedLayer(
            layer.input_layernorm.weight,
            _join(attention.q_proj, attention.k_proj, attention.v_proj),
            attention.o_proj.weight,
            layer.post_attention_layernorm.weight,
            _join(mlp.gate_proj, mlp.up_proj),
            mlp.down_proj.weight,
            attention.scaling,
        )

    def __call__(self, tokens: torch.Tensor, plan: Plan, keep: torch.Tensor) -> torch.Tensor:
        """The logits (R, V) after the kept tokens."""
        base = self._model.model
        hidden = embedding(tokens, base.embed_tokens.weight)  # (N, H)
        cos, sin = base.rotary_emb(hidden, position_ids=plan.positions[None])
        half = self._head // 2
        cos, sin = cos[0, :, None], torch.cat([-sin[0, :, None, :half], sin[0, :, None, half:]], dim=-1)  # (N, 1, head)
        for number, layer in enumerate(self._layers):
            hidden = hidden + self._attention(number, layer, self._norm(hidden, layer.before_attention), plan, cos, sin)
            gate, up = linear(self._norm(hidden, layer.before_mlp), layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + linear(silu(gate) * up, layer.down)
        return linear(self._norm(hidden[keep], base.norm.weight), self._model.lm_head.weight)

    def _attention(
        self, number: int, layer: FusedLayer, normed: torch.Tensor, plan: Plan, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        rotated = self._heads + self._kv_heads
        qkv = linear(normed, layer.qkv).view(len(normed), -1, self._head)
        qk = qkv[:, :rotated]
        qk = qk * cos + qk.roll(self._head // 2, dims=-1) * sin  # rotate_half, its sign being in `sin`
        query, key, value = qk[:, : self._heads], qk[:, self._heads :], qkv[:, rotated:]
        query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in (query, key, value))
        attended = over_cache(plan, number, query, key, value, layer.scaling, None, None)
        return linear(attended.view(len(normed), -1), layer.out)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, (hidden.shape[-1],), weight, self._eps)


def _join(*parts: Any) -> torch.Tensor:
    """One matrix that holds the weights of all, which become views of it."""
    joined = torch.cat([part.weight.data for part in parts])
    for part, weight in zip(parts, joined.split([len(part.weight) for part in parts]), strict=True):
        part.weight.data = weight
    return joined
