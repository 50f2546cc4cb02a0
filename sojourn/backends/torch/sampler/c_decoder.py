"""A decoder of Llama's form as one call into the kernel: no Python between its operations.

Of a model in bf16, weights, what they multiply, and keys and values are bf16; all else is fp32.

A token's logits do not depend, not even in their last bit, on what is computed beside it, in which pieces its context
was read, or which part of that was cached.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from sojourn.backends.torch.kernels.cache import KeyValues
from sojourn.backends.torch.kernels.kernel import Kernel, struct
from sojourn.backends.torch.models.loading import max_context
from sojourn.backends.torch.sampler.attention import Plan

Weights = Iterable[tuple[str, torch.Tensor]]
FORMS = frozenset({"llama", "mistral", "qwen2", "qwen3"})  # model types that differ in what a layer may lack
NORMS = ("before", "bias", "query_norm", "key_norm", "between")
LAYER = (*NORMS, "qkv", "out", "gate", "up", "down", "keys", "values")
SIZES = ("layers", "hidden", "heads", "kv_heads", "inner", "vocabulary", "capacity")
COUNTS = ("rows", "kept", "width")
INPUTS = ("tokens", "places", "tables", "owners", "lengths", "keep", "angles", "cosines", "sines")
SCRATCH = ("hidden", "last", "qkv", "gate", "up", "normed", "attended", "gated")
WHOLE = 5  # of these are in fp32 whatever the model is in
PHASES = 8  # of a layer, and three besides, as in forward.c


Layer = struct(("window",), LAYER)
Model = struct(SIZES, ("norm", "head", "embedding", "layer"), ("eps", "scale"))
Step = struct(COUNTS, (*INPUTS, *SCRATCH, "logits", "phases"))


class Panels(NamedTuple):
    """Several weights that share their inputs, side by side as the kernel reads them."""

    packed: torch.Tensor
    begin: int  # the first output of the weight that is meant


class Compiled:
    """Takes the model over: of the weights that the kernel has of its own, the model keeps the shapes alone."""

    def __init__(self, model: Any, kernel: Kernel, cache: KeyValues) -> None:
        config, attention = model.config, model.model.layers[0].self_attn
        self._base, self._kernel = model.model, kernel
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._panels: dict[str, Panels] = {}
        for parameter in self._parameters.values():
            if parameter.ndim == 1:  # norms and biases
                parameter.data = parameter.data.float()
        layers = (Layer * len(cache.layers))()
        for number, (layer, kept) in enumerate(zip(self._base.layers, cache.layers, strict=True)):
            layers[number] = self._layer(f"model.layers.{number}", layer, kept)
        vocabulary = self._pack("lm_head")
        kv_heads, capacity = cache.layers[0].keys.shape[:2]
        sizes = (config.hidden_size, config.num_attention_heads, kv_heads, config.intermediate_size, config.vocab_size)
        table = self._base.embed_tokens.weight
        at = (self._base.norm.weight.data_ptr(), vocabulary, table.data_ptr(), ctypes.addressof(layers))
        self._layers, self._vocabulary = layers, config.vocab_size
        self._about = Model(len(layers), *sizes, capacity, *at, config.rms_norm_eps, attention.scaling)
        hidden, inner, wide = (
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads * attention.head_dim,
        )
        beside = 2 * kv_heads * attention.head_dim
        self._widths = (hidden, hidden, wide + beside, inner, inner, hidden, wide, inner)
        self._scratch, self._rows = [torch.empty(0)] * len(self._widths), 0
        self._tables: tuple[torch.Tensor, ...] = ()
        self._phases = torch.empty(PHASES * len(layers) + 3, 2, dtype=torch.int64)
        if model.lm_head.weight is self._base.embed_tokens.weight:
            self._panels["model.embed_tokens.weight"] = self._panels["lm_head.weight"]
        for name in self._panels:
            if self._parameters[name] is not self._base.embed_tokens.weight:
                self._parameters[name] = torch.nn.Parameter(self._parameters[name].to("meta"), requires_grad=False)
                model.get_submodule(name.removesuffix(".weight")).weight = self._parameters[name]

    def load(self, weights: Weights) -> None:
        """Overwrites parameters of the model, by name, with values of their shapes."""
        for name, tensor in weights:
            if name in self._panels:
                panels = self._panels[name]
                self._kernel.pack(tensor.to(panels.packed), panels.packed, panels.begin)
            if not self._parameters[name].is_meta:
                self._parameters[name].copy_(tensor)

    def __call__(self, tokens: torch.Tensor, plan: Plan, keep: torch.Tensor) -> torch.Tensor:
        """The logits (R, V) after the kept tokens."""
        if len(tokens) > self._rows:
            self._rows = len(tokens)
            kinds = [torch.float32] * WHOLE + [self._kernel.dtype] * (len(SCRATCH) - WHOLE)
            self._scratch = [
                torch.empty(self._rows, width, dtype=kind) for width, kind in zip(self._widths, kinds, strict=True)
            ]
        rows, logits = plan.rows, torch.empty(len(keep), self._vocabulary)
        inputs = (tokens, plan.places, *rows, keep, *self._angles(plan))
        pointers = (tensor.data_ptr() for tensor in (*inputs, *self._scratch, logits, self._phases))
        step = Step(len(tokens), len(keep), rows.tables.shape[1], *pointers)
        self._kernel.forward(self._about, step)
        return logits

    def _angles(self, plan: Plan) -> tuple[torch.Tensor, ...]:
        """Where in the tables of cosines and sines each token's are, and the tables (positions, head)."""
        most = plan.length
        if not self._tables or most > len(self._tables[0]):
            ahead = torch.arange(max(most, min(2 * most, max_context(self._base.config))))
            tables = self._base.rotary_emb(torch.zeros(1), position_ids=ahead[None])
            self._tables = tuple(part[0].contiguous() for part in tables)
        return plan.positions, *self._tables

    def _layer(self, name: str, layer: Any, kept: Any) -> ctypes.Structure:
        attention = layer.self_attn
        projected = [getattr(attention, f"{part}_proj") for part in "qkv"]
        norms = [getattr(attention, f"{part}_norm", None) for part in "qk"]
        return Layer(
            window=window_of(attention) or 0,
            before=layer.input_layernorm.weight.data_ptr(),
            qkv=self._pack(*(f"{name}.self_attn.{part}_proj" for part in "qkv")),
            bias=_joined_bias(projected),
            query_norm=norms[0] and norms[0].weight.data_ptr(),
            key_norm=norms[1] and norms[1].weight.data_ptr(),
            out=self._pack(f"{name}.self_attn.o_proj"),
            between=layer.post_attention_layernorm.weight.data_ptr(),
            gate=self._pack(f"{name}.mlp.gate_proj"),
            up=self._pack(f"{name}.mlp.up_proj"),
            down=self._pack(f"{name}.mlp.down_proj"),
            keys=kept.keys.data_ptr(),
            values=kept.values.data_ptr(),
        )

    def _pack(self, *names: str) -> int:
        """The address of the weights' panels."""
        weights = {f"{name}.weight": self._parameters[f"{name}.weight"].data for name in names}
        outputs = sum(len(weight) for weight in weights.values())
        packed, begin = self._kernel.panels(outputs, next(iter(weights.values())).shape[1]), 0
        for name, weight in weights.items():
            self._panels[name] = Panels(packed, begin)
            self._kernel.pack(weight, packed, begin)
            begin += len(weight)
        return packed.data_ptr()


def window_of(attention: Any) -> int | None:
    """To how many tokens a layer's attention is bound, where it is."""
    return getattr(attention if hasattr(attention, "sliding_window") else attention.config, "sliding_window", None)


def _joined_bias(projections: Sequence[torch.nn.Linear]) -> int | None:
    """The address of all biases side by side, of which the model's become views, where there are any."""
    if projections[0].bias is None:
        return None
    joined = torch.cat([module.bias.data for module in projections])
    for module, bias in zip(projections, joined.split([len(m.bias) for m in projections]), strict=True):
        module.bias.data = bias
    return joined.data_ptr()


def fits(model: Any) -> bool:
    """Whether the kernel knows all that the model does."""
    config = model.config
    projections = [(n, module) for n, module in model.named_modules() if n.endswith("_proj")]
    own_bias = [n for n, module in projections if module.bias is not None and n[-6:-5] not in "qkv"]
    plain = all(type(module) is torch.nn.Linear for _, module in projections)
    paired = model.dtype == torch.float32 or all(module.in_features % 2 == 0 for _, module in projections)
    return config.model_type in FORMS and config.hidden_act == "silu" and plain and paired and not own_bias
