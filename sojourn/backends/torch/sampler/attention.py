"""Computes the attention of a packed step over a paged cache, through transformers' own attention interface.

One step of the engine is one row of tokens: pieces of many contexts, those of a few tokens first. The model's linear
layers are given the row without padding; here every token attends to the keys and values of its context, whose pages
may lie anywhere in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import AttentionInterface

from sojourn.backends.torch.kernels.cache import PAGE, KeyValues, Layer, Shape
from sojourn.backends.torch.kernels.kernel import Kernel, Rows
from sojourn.backends.torch.sampler.prefix_cache import Context
from sojourn.errors import ModelError

NAME = "sojourn_engine"
SHORT = 8  # the most tokens of a short piece, each of which attends alone; with the kernel all tokens attend alone


class LayoutError(ModelError):
    """Says that attention was called without what the engine hands to it."""


class Piece(NamedTuple):
    """Tokens `begin:end` of one context."""

    context: Context
    begin: int
    end: int

    @property
    def is_long(self) -> bool:
        return self.end - self.begin > SHORT


class Span(NamedTuple):
    """Consecutive tokens of a step, whose contexts are of one model."""

    model: str
    first: int
    stop: int


class LongPiece(NamedTuple):
    """A piece whose tokens attend in one call, as one block of queries."""

    rows: slice  # of the step
    pages: torch.Tensor  # (1, pages) the numbers of its context's pages
    begin: int  # positions in the context
    end: int


@dataclass
class StepLayout:
    """Maps every token of a step to its context, its position and its slot in the cache. Tokens of short pieces attend
    one by one; without a kernel, these pieces must come first. With a kernel, all tokens attend one by one."""

    cache: KeyValues
    pieces: list[Piece]
    device: torch.device
    kernel: Kernel | None = None
    counts: np.ndarray = field(init=False)  # (pieces,) the number of tokens of each
    length: int = field(init=False)  # tokens of the longest context
    positions: torch.Tensor = field(init=False)  # (N,)
    slots: torch.Tensor = field(init=False)  # (N,) in the cache
    _page_tables: torch.Tensor = field(init=False)  # (pieces, pages)
    _contexts: torch.Tensor = field(init=False)  # (N,) rows of `_page_tables`
    _masks: dict[tuple[int, int | None], tuple[int, torch.Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        contexts, begins, ends = zip(*self.pieces, strict=True)
        self.length, self.counts = max(ends), np.subtract(ends, begins)
        width = -(-self.length // PAGE)
        tables = np.concatenate([context.table[:width] for context in contexts]).reshape(-1, width)
        owners = np.repeat(np.arange(len(ends)), self.counts)
        positions = np.arange(len(owners)) + (ends - np.cumsum(self.counts))[owners]
        slots = tables[owners, positions // PAGE] * PAGE + positions % PAGE
        self.positions, self.slots, self._page_tables, self._contexts = (
            torch.from_numpy(array).to(self.device) for array in (positions, slots, tables, owners)
        )

    @cached_property
    def spans(self) -> list[Span]:
        """Returns which tokens are of which model."""
        spans, first = [], 0
        for model, pieces in groupby(self.pieces, key=lambda piece: piece.context.model):
            stop = first + sum(piece.end - piece.begin for piece in pieces)
            spans.append(Span(model, first, stop))
            first = stop
        return spans

    @cached_property
    def short_piece_count(self) -> int:
        """Returns the number of pieces whose tokens attend one by one."""
        return len(self.pieces) if self.kernel is not None else sum(not piece.is_long for piece in self.pieces)

    @cached_property
    def short_token_count(self) -> int:
        """Returns the number of tokens of the short pieces."""
        return int(self.counts[: self.short_piece_count].sum())

    @cached_property
    def rows(self) -> Rows:
        """Returns the tokens of the short pieces as rows that attend one by one."""
        pages = -(-max(piece.end for piece in self.pieces[: self.short_piece_count]) // PAGE)
        tables = self._page_tables[: self.short_piece_count, :pages].contiguous()
        return Rows(tables, self._contexts[: self.short_token_count], self.positions[: self.short_token_count] + 1)

    @cached_property
    def long_pieces(self) -> list[LongPiece]:
        out, row = [], self.short_token_count
        for context, begin, end in self.pieces[self.short_piece_count :]:
            pages = torch.from_numpy(context.table[None, : -(-end // PAGE)]).to(self.device)
            out.append(LongPiece(slice(row, row + end - begin), pages, begin, end))
            row += end - begin
        return out

    def mask(self, number: int, window: int | None, repeats: int, dtype: torch.dtype) -> tuple[int, torch.Tensor]:
        """Returns, for a long piece, the index of the first key that any of its tokens attends to, and the additive
        mask (repeats * n, keys) for the keys from there on."""
        key = (number, window)
        if key not in self._masks:
            _, _, begin, end = self.long_pieces[number]
            first = max(0, begin - window + 1) if window else 0
            queries = torch.arange(begin, end, device=self.device)[:, None]
            keys = torch.arange(first, end, device=self.device)
            visible = (keys <= queries) & (keys > queries - (window or end + 1))
            self._masks[key] = first, _additive(visible, dtype).repeat(repeats, 1)
        return self._masks[key]


def attend(
    module: Any,
    query: torch.Tensor,  # (1, heads, N, head)
    key: torch.Tensor,  # (1, kv_heads, N, head)
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sojourn_layout: StepLayout | Probe | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Stores the row's keys and values in the cache and returns its attention over the cache: (1, N, heads, head)."""
    if isinstance(sojourn_layout, StepLayout):
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        out = cached_attention(sojourn_layout, module.layer_idx, q, k, v, scaling, sliding_window, softcap)
        return out[None], None
    if sojourn_layout is None:
        raise LayoutError(
            "a model that attends through the sampler's cache was called without a layout: expected the engine's own "
            "copy of the model, configuration included: copy.deepcopy it before Engine(...)"
        )
    return sojourn_layout.note(module, query, key, value, others | {"a mask of its own": attention_mask}), None


def cached_attention(
    layout: StepLayout,
    layer: int,
    query: torch.Tensor,  # (N, heads, head)
    key: torch.Tensor,  # (N, kv_heads, head)
    value: torch.Tensor,
    scaling: float | None,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Stores a step's keys and values in the cache and returns its attention (N, heads, head). With the kernel every
    token is a row of one call; without it, each long piece has a call of its own. Key heads are never repeated in
    memory."""
    cached = layout.cache.layers[layer]
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if layout.kernel is not None:
        layout.kernel.store(cached, key, value, layout.slots)
    else:
        cached.keys.index_copy_(1, layout.slots, key.transpose(0, 1))
        cached.values.index_copy_(1, layout.slots, value.transpose(0, 1))
    parts = []
    if layout.short_token_count:
        rows = query[: layout.short_token_count]
        attend_rows = _attend_rows if layout.kernel is None else layout.kernel.attend
        parts.append(attend_rows(cached, rows, layout.rows, scale, window, softcap))
    for number, piece in enumerate(layout.long_pieces):
        parts.append(_attend_piece(layout, number, cached.read(piece.pages), query[piece.rows], scale, window, softcap))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_piece(
    layout: StepLayout,
    number: int,
    cached: tuple[torch.Tensor, torch.Tensor],  # (kv_heads, 1, keys, head)
    query: torch.Tensor,  # (n, heads, head)
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Returns the attention of a long piece: (n, heads, head). Query heads that share a key head are stacked as
    rows."""
    kv_heads, count = len(cached[0]), len(query)
    first, mask = layout.mask(number, window, query.shape[1] // kv_heads, query.dtype)
    keys, values = (
        tensor[None, :, 0, first : layout.long_pieces[number].end] for tensor in cached
    )  # (1, kv_heads, T, head)
    q = query.unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)[None]
    out = _torch_attention(q, keys, values, mask, scale, softcap)[0]
    return out.unflatten(1, (-1, count)).permute(2, 0, 1, 3).flatten(1, 2)


def _attend_rows(
    cached: Layer, query: torch.Tensor, rows: Rows, scale: float, window: int | None, softcap: float | None
) -> torch.Tensor:
    """Computes by torch what `Kernel.attend` computes: it gathers the whole context of every row."""
    pages = rows.page_tables[rows.contexts]
    keys, values = (tensor.transpose(0, 1) for tensor in cached.read(pages))  # (R, kv_heads, T, head)
    key, last = torch.arange(keys.shape[2], device=query.device), rows.lengths[:, None] - 1
    visible = (key <= last) & (key > last - (window or keys.shape[2]))
    values = values.masked_fill(~visible[:, None, :, None], 0)  # uninitialised memory may not be finite
    keys = keys.masked_fill(~visible[:, None, :, None], 0)
    q = query.unflatten(1, (keys.shape[1], -1))  # (R, kv_heads, repeats, head)
    return _torch_attention(q, keys, values, _additive(visible, query.dtype)[:, None, None], scale, softcap).flatten(
        1, 2
    )


def _additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a mask to be added to scores: 0 for what is visible, else minus infinity."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def _torch_attention(q: Any, k: Any, v: Any, mask: Any, scale: float, softcap: float | None) -> torch.Tensor:
    if softcap is None:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    scores = softcap * torch.tanh(q @ k.transpose(-1, -2) * scale / softcap) + mask
    return scores.float().softmax(-1).to(v.dtype) @ v


class Probe:
    """Passes one token through a model, to find the shapes of its keys and values and to check that all layers attend
    as this engine assumes."""

    def __init__(self) -> None:
        self.shapes: dict[int, Shape] = {}

    def note(self, module: Any, query: Any, key: Any, value: Any, others: dict[str, Any]) -> torch.Tensor:
        unknown = [name for name in ("s_aux", "position_bias", "a mask of its own") if others.get(name) is not None]
        if unknown or not getattr(module, "is_causal", True):
            asks = f"attention with {unknown[0]}" if unknown else "attention that is not causal"
            raise ModelError(f"{type(module).__name__} asks for {asks}: this engine cannot sample from such a model")
        self.shapes[module.layer_idx] = Shape(key.shape[1], key.shape[-1], value.shape[-1])
        return value.repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(1, 2)

    def run(self, model: Any) -> list[Shape]:
        """Returns the shapes of a token's keys and values in each layer. Raises `ModelError` where a layer does not
        attend through transformers' interface."""
        AttentionInterface.register(NAME, attend)  # no mask function: transformers then builds no mask for this name
        model.set_attn_implementation(NAME)
        device = next(model.parameters()).device
        token = torch.zeros(1, 1, dtype=torch.long, device=device)
        with torch.inference_mode():
            try:
                model(
                    input_ids=token, position_ids=token, use_cache=False, logits_to_keep=token[0], sojourn_layout=self
                )
            except (TypeError, LayoutError) as error:
                reason = f" ({error})" if isinstance(error, TypeError) else ""
                raise ModelError(
                    f"{type(model).__name__} does not hand its arguments on to its attention{reason}: expected a "
                    "causal language model of transformers: this engine cannot sample from such a model"
                ) from error
        text = model.config.get_text_config()
        if sorted(self.shapes) != list(range(text.num_hidden_layers)):
            raise ModelError(
                f"of the {text.num_hidden_layers} layers of '{text.model_type}', {len(self.shapes)} attend through "
                "transformers' attention interface: expected all: this engine cannot sample from such a model"
            )
        return [self.shapes[layer] for layer in sorted(self.shapes)]
