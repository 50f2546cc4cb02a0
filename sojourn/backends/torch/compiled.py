"""The decoder of Llama in fp32 as one call into the kernel: no Python between its operations.

A token's logits do not depend, not even in their last bit, on what is computed beside it, in which pieces its context
was read, or which part of that was cached. The weights are laid out a second time, for the kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import embedding

from sojourn.backends.torch.attention import Plan
from sojourn.backends.torch.cache import KeyValues
from sojourn.backends.torch.kernel import Kernel

LAYER = ("before", "qkv", "out", "between", "gate", "up", "down", "keys", "values")
SIZES = ("layers", "hidden", "heads", "kv_heads", "inner", "vocabulary", "capacity")
COUNTS = ("rows", "kept", "width")
INPUTS = ("places", "tables", "owners", "lengths", "keep", "cosines", "sines")
SCRATCH = ("hidden", "last", "normed", "qkv", "attended", "gate", "up")
PHASES = 8  # of a layer, and two more in the end


def _struct(integers: Sequence[str], pointers: Sequence[str], floats: Sequence[str] = ()) -> type[ctypes.Structure]:
    """As forward.c declares it."""
    kinds = ((integers, ctypes.c_int64), (pointers, ctypes.c_void_p), (floats, ctypes.c_float))
    fields = [(name, kind) for names, kind in kinds for name in names]
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})


Layer = _struct((), LAYER)
Model = _struct(SIZES, ("norm", "head", "layer"), ("eps", "scale"))
Step = _struct(COUNTS, (*INPUTS, *SCRATCH, "logits", "shares"))


class CompiledLlama:
    def __init__(self, model: Any, kernel: Kernel, cache: KeyValues) -> None:
        config, attention = model.config, model.model.layers[0].self_attn
        self._model, self._kernel = model, kernel
        self._packed = [kernel.panels(weight) for weight in self._weights()]
        packed, head = [tensor.data_ptr() for tensor in self._packed], attention.head_dim
        layers = (Layer * len(cache.layers))()
        for number, (layer, kept) in enumerate(zip(model.model.layers, cache.layers, strict=True)):
            qkv, out, gate, up, down = packed[5 * number : 5 * number + 5]
            before, between = layer.input_layernorm.weight.data_ptr(), layer.post_attention_layernorm.weight.data_ptr()
            kept = (kept.keys.data_ptr(), kept.values.data_ptr())
            layers[number] = Layer(before, qkv, out, between, gate, up, down, *kept)
        kv_heads, capacity = cache.layers[0].keys.shape[:2]
        sizes = (config.hidden_size, config.num_attention_heads, kv_heads, config.intermediate_size, config.vocab_size)
        at = (model.model.norm.weight.data_ptr(), packed[-1], ctypes.addressof(layers))
        self._layers, self._vocabulary = layers, config.vocab_size
        self._about = Model(len(layers), *sizes, capacity, *at, config.rms_norm_eps, attention.scaling)
        wide = config.num_attention_heads * head
        self._widths = (sizes[0], sizes[0], sizes[0], wide + 2 * kv_heads * head, wide, sizes[3], sizes[3])
        self._scratch, self._rows = [torch.empty(0)] * len(self._widths), 0
        self._shares = torch.zeros(PHASES * len(layers) + 2, dtype=torch.int64)

    def refresh(self) -> None:
        """After the model's parameters were written to."""
        for packed, weight in zip(self._packed, self._weights(), strict=True):
            self._kernel.panels(weight, packed)

    def __call__(self, tokens: torch.Tensor, plan: Plan, keep: torch.Tensor) -> torch.Tensor:
        """The logits (R, V) after the kept tokens."""
        rows, base = plan.rows, self._model.model
        if len(tokens) > self._rows:
            self._rows = len(tokens)
            self._scratch = [torch.empty(self._rows, width) for width in self._widths]
        hidden = self._scratch[0][: len(tokens)]
        hidden.copy_(embedding(tokens, base.embed_tokens.weight))
        angles = [part[0].contiguous() for part in base.rotary_emb(hidden, position_ids=plan.positions[None])]
        logits, inputs = torch.empty(len(keep), self._vocabulary), (plan.places, *rows, keep, *angles)
        self._shares.zero_()
        pointers = (tensor.data_ptr() for tensor in (*inputs, *self._scratch, logits, self._shares))
        step = Step(len(tokens), len(keep), rows.tables.shape[1], *pointers)
        self._kernel.forward(self._about, step)
        return logits

    def _weights(self) -> Iterator[torch.Tensor]:
        """Five of each layer, and the vocabulary's."""
        for layer in self._model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            yield torch.cat([part.weight.data for part in (attention.q_proj, attention.k_proj, attention.v_proj)])
            yield from (m.weight.data for m in (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj))
        yield self._model.lm_head.weight.data
