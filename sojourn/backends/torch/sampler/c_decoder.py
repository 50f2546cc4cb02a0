"""Runs a decoder of Llama's form as one call into the kernel, without Python between its operations.

For a model in bf16, weights and their inputs, keys and values are bf16; all else is fp32.

A token's logits are the same to the bit whatever else is computed in the same batch, in whatever chunks its context was
prefilled, and whichever part of that was cached: also where adapters are added to it, and to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from sojourn.backends.torch.kernels.cache import KeyValues
from sojourn.backends.torch.kernels.header import constants, header
from sojourn.backends.torch.kernels.kernel import Kernel
from sojourn.backends.torch.models.adapters import Adapter
from sojourn.backends.torch.models.loading import LLAMA_LIKE, max_context
from sojourn.backends.torch.sampler.attention import StepLayout
from sojourn.backends.torch.sampler.c_adapters import CAdapters
from sojourn.backends.torch.sampler.steering import SteeredRows

Weights = Iterable[tuple[str, torch.Tensor]]


class Panels(NamedTuple):
    """One of several weights that share their inputs and are packed side by side in the kernel's layout: all of them,
    and the index of this one's first output."""

    packed: torch.Tensor
    first_output: int


class CDecoder:
    """Runs a model by the kernel. Weights are packed into the kernel's layout; of these the transformers model keeps
    only the shapes, as meta tensors."""

    def __init__(self, model: Any, kernel: Kernel, cache: KeyValues) -> None:
        config, attention = model.config, model.model.layers[0].self_attn
        self._base, self._kernel = model.model, kernel
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._panels: dict[str, Panels] = {}
        for parameter in self._parameters.values():
            if parameter.ndim == 1:  # norms and biases
                parameter.data = parameter.data.float()
        kv_heads, cache_tokens = cache.layers[0].keys.shape[:2]
        self._vocab_size = config.vocab_size
        layers = [
            self._layer(f"model.layers.{number}", layer, layer_cache)
            for number, (layer, layer_cache) in enumerate(zip(self._base.layers, cache.layers, strict=True))
        ]
        self._layers = header().new("struct Layer[]", layers)
        self._model = header().new(
            "struct Model *",
            {
                "layer_count": len(layers),
                "hidden_size": config.hidden_size,
                "heads": config.num_attention_heads,
                "kv_heads": kv_heads,
                "intermediate_size": config.intermediate_size,
                "vocab_size": config.vocab_size,
                "cache_tokens": cache_tokens,
                "final_norm": self._base.norm.weight.data_ptr(),
                "lm_head": self._pack("lm_head"),
                "embedding": self._base.embed_tokens.weight.data_ptr(),
                "layers": self._layers,
                "norm_eps": config.rms_norm_eps,
                "attention_scale": attention.scaling,
            },
        )
        phases = constants()["DECODER_LAYER_PHASES"] * len(layers) + constants()["DECODER_OTHER_PHASES"]
        self._phases = header().new("struct Phase[]", phases)
        self._step: Any = header().new("struct Step *", {"phases": self._phases})
        attended = config.num_attention_heads * attention.head_dim
        hidden, inner, qkv = (
            config.hidden_size,
            config.intermediate_size,
            attended + 2 * kv_heads * attention.head_dim,
        )
        self._floats = {"hidden": hidden, "last_hidden": hidden, "qkv": qkv, "gate": inner, "up": inner}
        self._reals = {"normed": hidden, "attended": attended, "gated": inner}
        self._scratch: dict[str, torch.Tensor] = {}
        self._rows = 0  # the number of rows for which there is scratch memory
        self._tables: tuple[torch.Tensor, ...] = ()
        shapes = {name: parameter.shape for name, parameter in self._parameters.items()}
        self._adapters = CAdapters(kernel, shapes, len(layers))
        if model.lm_head.weight is self._base.embed_tokens.weight:
            self._panels["model.embed_tokens.weight"] = self._panels["lm_head.weight"]
        for name in self._panels:
            if self._parameters[name] is not self._base.embed_tokens.weight:
                self._parameters[name] = torch.nn.Parameter(self._parameters[name].to("meta"), requires_grad=False)
                model.get_submodule(name.removesuffix(".weight")).weight = self._parameters[name]

    def load(self, weights: Weights) -> None:
        """Overwrites parameters of the model, by name, with values of the same shapes."""
        for name, tensor in weights:
            if name in self._panels:
                panels = self._panels[name]
                self._kernel.pack(tensor.to(panels.packed), panels.packed, panels.first_output)
            if not self._parameters[name].is_meta:
                self._parameters[name].copy_(tensor)

    def add_adapter(self, name: str, adapter: Adapter) -> None:
        """Adds an adapter, or replaces the one of that name, for the tokens of contexts of the model `name`."""
        self._adapters.add(name, adapter)
        self._reserve(self._rows, anew=True)

    def drop_adapter(self, name: str) -> None:
        self._adapters.drop(name)

    def __call__(
        self, tokens: torch.Tensor, layout: StepLayout, logit_rows: torch.Tensor, steered: Sequence[SteeredRows] = ()
    ) -> torch.Tensor:
        """Returns the logits (R, V) that follow some of the tokens (N,)."""
        self._reserve(len(tokens))
        self._extend_tables(layout.length)
        rows, step = layout.rows, self._step
        logits = torch.empty(len(logit_rows), self._vocab_size)
        step.rows, step.logit_count, step.pages = len(tokens), len(logit_rows), rows.page_tables.shape[1]
        step.tokens, step.slots, step.positions = (
            tokens.data_ptr(),
            layout.slots.data_ptr(),
            layout.positions.data_ptr(),
        )
        step.page_tables, step.contexts = rows.page_tables.data_ptr(), rows.contexts.data_ptr()
        step.lengths, step.logit_rows = rows.lengths.data_ptr(), logit_rows.data_ptr()
        step.logits = logits.data_ptr()
        adapted = self._adapters.rows(layout, logit_rows)
        step.adapted_count = step.adapted_logit_count = 0
        if adapted is not None:
            step.adapted, step.adapted_logits = adapted
            step.adapted_count, step.adapted_logit_count = (len(rows) for rows in adapted)
        step.steered, step.steerings = 0, header().NULL
        if steered:
            numbers = torch.full((len(tokens),), -1, dtype=torch.int64)
            for number, one in enumerate(steered):
                numbers[one.rows] = number
            fields = [{"layer": one.layer, "vector": one.vector.data_ptr()} for one in steered]
            steerings = header().new("struct Steering[]", fields)  # held until the step is done, as `numbers` are
            step.steered, step.steerings = numbers.data_ptr(), steerings
        self._kernel.decoder_forward(self._model, step)
        return logits

    def _reserve(self, rows: int, *, anew: bool = False) -> None:
        """Enlarges the scratch memory to so many rows, or takes it anew where rows have become wider."""
        if rows <= self._rows and not anew:
            return
        self._rows = rows
        self._reals["low"] = self._step.low_width = self._adapters.width
        for widths, dtype in ((self._floats, torch.float32), (self._reals, self._kernel.dtype)):
            for name, width in widths.items():
                self._scratch[name] = torch.empty(rows, width, dtype=dtype)
                setattr(self._step, name, self._scratch[name].data_ptr())

    def _extend_tables(self, length: int) -> None:
        """Extends the tables of cosines and sines (positions, head) to at least `length` positions."""
        if self._tables and length <= len(self._tables[0]):
            return
        ahead = torch.arange(max(length, min(2 * length, max_context(self._base.config))))
        tables = self._base.rotary_emb(torch.zeros(1), position_ids=ahead[None])
        self._tables = tuple(part[0].contiguous() for part in tables)
        self._step.cosines, self._step.sines = (table.data_ptr() for table in self._tables)

    def _layer(self, name: str, layer: Any, layer_cache: Any) -> dict[str, int]:
        """Packs a layer's weights. Returns the fields of its C structure."""
        attention = layer.self_attn
        norms = [getattr(attention, f"{part}_norm", None) for part in "qk"]
        query_norm, key_norm = (0 if norm is None else norm.weight.data_ptr() for norm in norms)
        return {
            "window": window_of(attention) or 0,
            "input_norm": layer.input_layernorm.weight.data_ptr(),
            "qkv_bias": _joined_bias([getattr(attention, f"{part}_proj") for part in "qkv"]),
            "query_norm": query_norm,
            "key_norm": key_norm,
            "post_attention_norm": layer.post_attention_layernorm.weight.data_ptr(),
            "qkv": self._pack(*(f"{name}.self_attn.{part}_proj" for part in "qkv")),
            "out": self._pack(f"{name}.self_attn.o_proj"),
            "gate": self._pack(f"{name}.mlp.gate_proj"),
            "up": self._pack(f"{name}.mlp.up_proj"),
            "down": self._pack(f"{name}.mlp.down_proj"),
            "keys": layer_cache.keys.data_ptr(),
            "values": layer_cache.values.data_ptr(),
        }

    def _pack(self, *names: str) -> int:
        """Packs weights that share their inputs. Returns the address of their panels."""
        weights = {f"{name}.weight": self._parameters[f"{name}.weight"].data for name in names}
        outputs = sum(len(weight) for weight in weights.values())
        packed, first = self._kernel.panels(outputs, next(iter(weights.values())).shape[1]), 0
        for name, weight in weights.items():
            self._panels[name] = Panels(packed, first)
            self._kernel.pack(weight, packed, first)
            first += len(weight)
        return packed.data_ptr()


def window_of(attention: Any) -> int | None:
    """Returns the number of tokens in a layer's attention window, or None where it has no window."""
    return getattr(attention if hasattr(attention, "sliding_window") else attention.config, "sliding_window", None)


def _joined_bias(projections: Sequence[torch.nn.Linear]) -> int:
    """Concatenates the biases; those of the modules become views of the result. Returns its address, or 0 without
    biases."""
    if projections[0].bias is None:
        return 0
    joined = torch.cat([module.bias.data for module in projections])
    for module, bias in zip(projections, joined.split([len(m.bias) for m in projections]), strict=True):
        module.bias.data = bias
    return joined.data_ptr()


def fits(model: Any) -> bool:
    """Returns whether the kernel can compute all that the model does."""
    config = model.config
    projections = [(n, module) for n, module in model.named_modules() if n.endswith("_proj")]
    if config.model_type not in LLAMA_LIKE or not all(type(module) is torch.nn.Linear for _, module in projections):
        return False
    other_bias = [n for n, module in projections if module.bias is not None and n[-6:-5] not in "qkv"]
    paired = model.dtype == torch.float32 or all(module.in_features % 2 == 0 for _, module in projections)
    return config.hidden_act == "silu" and paired and not other_bias
