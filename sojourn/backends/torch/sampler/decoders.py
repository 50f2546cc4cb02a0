"""Runs a model in the engine: by the kernel, with fused operations, or through transformers.

At small batches a step through transformers' modules spends as long between operations as in them. `FusedLlama`
computes queries, keys and values as one product, gate and up as another, and calls no module: the numbers are the same
to rounding. The fused matrices are the storage of the model's own parameters, which become views of them, so both
always hold the same values. It is used where there is no kernel (`c_decoder`); a model of any other form goes through
transformers.

Adapters over the model are added to what its linear layers return, for the rows that ask for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu

from sojourn.backends.torch.kernels.cache import KeyValues
from sojourn.backends.torch.kernels.kernel import Kernel
from sojourn.backends.torch.models.adapters import Adapter
from sojourn.backends.torch.sampler import c_decoder, inductor
from sojourn.backends.torch.sampler.adapters import AdaptedLayers, AdaptedRows, Adapters, add
from sojourn.backends.torch.sampler.attention import StepLayout, cached_attention
from sojourn.backends.torch.sampler.c_decoder import CDecoder, Weights
from sojourn.backends.torch.sampler.steering import SteeredLayers, SteeredRows, steer


class Decoder(Protocol):
    """A model as the engine runs it."""

    def load(self, weights: Weights) -> None:
        """Overwrites parameters of the model, by name, with values of the same shapes."""
        ...

    def add_adapter(self, name: str, adapter: Adapter) -> None:
        """Adds an adapter, or replaces the one of that name, for the tokens of contexts of the model `name`."""
        ...

    def drop_adapter(self, name: str) -> None: ...

    def __call__(
        self, tokens: torch.Tensor, layout: StepLayout, logit_rows: torch.Tensor, steered: Sequence[SteeredRows] = ()
    ) -> torch.Tensor:
        """Returns the logits (R, V) that follow some of the tokens (N,), of which some rows are steered."""
        ...


def build(model: Any, kernel: Kernel | None, cache: KeyValues, *, by_inductor: bool = False) -> Decoder:
    """Returns the fastest decoder for a model of this form. With `by_inductor`, torch.compile speeds up what
    transformers runs."""
    if c_decoder.fits(model):
        if kernel is not None:
            return CDecoder(model, kernel, cache)
        if model.config.model_type == "llama" and not model.config.attention_bias:
            return FusedLlama(model)
    if by_inductor:
        inductor.compile_layers(model)
    return TransformersDecoder(model)


class TransformersDecoder:
    """Runs the model through transformers."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        first = next(model.parameters())
        self._adapters, self._adapted = Adapters(first.dtype, first.device), AdaptedLayers(model)
        self._steered = SteeredLayers(model)

    def load(self, weights: Weights) -> None:
        for name, tensor in weights:
            self._parameters[name].copy_(tensor)

    def add_adapter(self, name: str, adapter: Adapter) -> None:
        self._adapters.add(name, adapter)
        self._adapted.hook(list(adapter))

    def drop_adapter(self, name: str) -> None:
        self._adapters.drop(name)

    def __call__(
        self, tokens: torch.Tensor, layout: StepLayout, logit_rows: torch.Tensor, steered: Sequence[SteeredRows] = ()
    ) -> torch.Tensor:
        self._adapted.rows = self._adapters.rows(layout)
        self._steered.steer(steered)
        return self._model(
            input_ids=tokens[None],
            position_ids=layout.positions[None],
            use_cache=False,
            logits_to_keep=logit_rows,
            sojourn_layout=layout,
        ).logits[0]


class JoinedLinear:
    """Computes x @ weight.T for one linear layer of a model or several side by side, given by their names, without
    biases. The joined matrix is the storage of the layers' own parameters, which become views of it."""

    def __init__(self, model: Any, *names: str) -> None:
        modules = [model.get_submodule(name) for name in names]
        self._sizes = {name: len(module.weight) for name, module in zip(names, modules, strict=True)}
        self._weight = modules[0].weight.data
        if len(modules) > 1:
            self._weight = torch.cat([module.weight.data for module in modules])
            for module, weight in zip(modules, self._weight.split(list(self._sizes.values())), strict=True):
                module.weight.data = weight

    def __call__(self, x: torch.Tensor, adapted: Sequence[AdaptedRows] = ()) -> torch.Tensor:
        y = linear(x, self._weight)
        if adapted:
            for name, part in zip(self._sizes, y.split(list(self._sizes.values()), dim=-1), strict=True):
                add(name, x, part, adapted)
        return y


class FusedLayer(NamedTuple):
    """The weights of one decoder layer; both norms precede their part."""

    attention_norm: torch.Tensor
    qkv: JoinedLinear
    out: JoinedLinear
    mlp_norm: torch.Tensor
    gate_up: JoinedLinear
    down: JoinedLinear
    scaling: float


class FusedLlama(TransformersDecoder):
    """Runs a model of Llama's form by torch's functions, with fused projections."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        config = model.config
        self._eps = config.rms_norm_eps
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head = model.model.layers[0].self_attn.head_dim
        self._layers = [self._fuse(f"model.layers.{n}", layer) for n, layer in enumerate(model.model.layers)]
        self._lm_head = JoinedLinear(model, "lm_head")

    def _fuse(self, name: str, layer: Any) -> FusedLayer:
        return FusedLayer(
            layer.input_layernorm.weight,
            JoinedLinear(self._model, *(f"{name}.self_attn.{part}_proj" for part in "qkv")),
            JoinedLinear(self._model, f"{name}.self_attn.o_proj"),
            layer.post_attention_layernorm.weight,
            JoinedLinear(self._model, f"{name}.mlp.gate_proj", f"{name}.mlp.up_proj"),
            JoinedLinear(self._model, f"{name}.mlp.down_proj"),
            layer.self_attn.scaling,
        )

    def __call__(
        self, tokens: torch.Tensor, layout: StepLayout, logit_rows: torch.Tensor, steered: Sequence[SteeredRows] = ()
    ) -> torch.Tensor:
        base = self._model.model
        hidden = embedding(tokens, base.embed_tokens.weight)  # (N, H)
        cos, sin = (part[0].float() for part in base.rotary_emb(hidden, position_ids=layout.positions[None]))
        residual, adapted = None, self._adapters.rows(layout)
        for number, layer in enumerate(self._layers):
            normed = self._add_norm(hidden, residual, layer.attention_norm)
            attended = self._attention(number, layer, layer.qkv(normed, adapted), layout, cos, sin)
            normed = self._add_norm(hidden, layer.out(attended, adapted), layer.mlp_norm)
            gate, up = layer.gate_up(normed, adapted).chunk(2, dim=-1)
            residual = layer.down(silu(gate) * up, adapted)
            steer(residual, number, steered)
        assert residual is not None
        return self._lm_head(self._add_norm(hidden[logit_rows], residual[logit_rows], base.norm.weight))

    def _attention(
        self,
        number: int,
        layer: FusedLayer,
        qkv: torch.Tensor,
        layout: StepLayout,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        """Returns the attention (N, heads * head) of queries, keys and values side by side, which are rotated in
        place."""
        rotated = self._heads + self._kv_heads
        heads = qkv.view(len(qkv), -1, self._head)
        query_key = heads[:, :rotated]
        low, high = query_key.chunk(2, dim=-1)
        query_key.copy_(query_key * cos[:, None] + torch.cat([-high, low], dim=-1) * sin[:, None])
        query, key, value = heads[:, : self._heads], heads[:, self._heads : rotated], heads[:, rotated:]
        return cached_attention(layout, number, query, key, value, layer.scaling).reshape(len(qkv), -1)

    def _add_norm(self, hidden: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        """Returns the norm of hidden + residual; the sum is left in `hidden`."""
        if residual is not None:
            hidden += residual
        return rms_norm(hidden, (hidden.shape[-1],), weight, self._eps)
