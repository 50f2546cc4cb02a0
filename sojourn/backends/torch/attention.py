"""Attention of a packed step over cached contexts, through transformers' own attention interface.

One step of the engine is one row of tokens: first one token each of many contexts, then longer pieces of others. The
model's linear layers see the row without padding; here every token meets the keys and values of its own context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import AttentionInterface

from sojourn.backends.torch.cache import KeyValues, Shape
from sojourn.errors import ModelError

NAME = "sojourn_engine"


class Piece(NamedTuple):
    """Tokens `begin:end` of one context, in its slot."""

    slot: int
    begin: int
    end: int


class Block(NamedTuple):
    """Rows that attend in one call: one token each of neighbouring slots, or one longer piece of a context."""

    slots: slice
    rows: slice
    queries: int  # of each slot
    low: int  # the first position of a query, over the slots
    high: int  # the number of keys, over the slots


@dataclass
class Plan:
    """Where every token of a step's row belongs. Pieces of one token come first, by slot."""

    cache: KeyValues
    pieces: list[Piece]
    device: torch.device
    blocks: list[Block] = field(init=False)
    singles: int = field(init=False)
    positions: torch.Tensor = field(init=False)  # (N,)
    _slots: torch.Tensor = field(init=False)  # (singles,)
    _masks: dict[tuple[int, int | None, int, torch.dtype], tuple[int, torch.Tensor | None]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self.pieces = sorted(self.pieces, key=lambda piece: (piece.end - piece.begin > 1, piece.slot))
        self.singles = sum(piece.end - piece.begin == 1 for piece in self.pieces)
        self.blocks = list(self._blocks())
        positions = np.concatenate([np.arange(piece.begin, piece.end) for piece in self.pieces])
        self.positions = torch.from_numpy(positions).to(self.device)
        self._slots = torch.tensor([piece.slot for piece in self.pieces[: self.singles]], device=self.device)

    def _blocks(self) -> Iterator[Block]:
        row = 0
        while row < self.singles:
            end = row + 1
            while end < self.singles and self.pieces[end].slot == self.pieces[end - 1].slot + 1:
                end += 1
            run = self.pieces[row:end]
            slots = slice(run[0].slot, run[-1].slot + 1)
            yield Block(slots, slice(row, end), 1, min(p.begin for p in run), max(p.end for p in run))
            row = end
        for slot, begin, end in self.pieces[self.singles :]:
            yield Block(slice(slot, slot + 1), slice(row, row + end - begin), end - begin, begin, end)
            row += end - begin

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Puts the row's keys and values (1, kv_heads, N, head) where they belong."""
        keys, values = self.cache.layers[layer]
        if self.singles:
            at = self.positions[: self.singles]
            keys[self._slots, :, at] = key[0, :, : self.singles].transpose(0, 1)
            values[self._slots, :, at] = value[0, :, : self.singles].transpose(0, 1)
        for block in self.blocks:
            if block.queries > 1:
                slot = block.slots.start
                keys[slot, :, block.low : block.high] = key[0, :, block.rows]
                values[slot, :, block.low : block.high] = value[0, :, block.rows]

    def mask(self, number: int, window: int | None, repeats: int, dtype: torch.dtype) -> tuple[int, Any]:
        """For a block: the first key that any query may see, and what to add to the scores (None: nothing is hidden).

        The mask is (slots, 1, repeats * queries, keys): the query heads that share a key head are stacked as rows.
        """
        cached = self._masks.get((number, window, repeats, dtype))
        if cached is None:
            cached = self._masks[number, window, repeats, dtype] = self._mask(
                self.blocks[number], window, repeats, dtype
            )
        return cached

    def _mask(self, block: Block, window: int | None, repeats: int, dtype: torch.dtype) -> tuple[int, Any]:
        count = block.slots.stop - block.slots.start
        first = max(0, block.low - window + 1) if window else 0
        at = self.positions[block.rows].view(count, 1, block.queries, 1)
        key = torch.arange(first, block.high, device=self.device)
        seen = key <= at
        if window:
            seen &= key > at - window
        if bool(seen.all()):
            return first, None
        hidden = torch.zeros(seen.shape, dtype=dtype, device=self.device).masked_fill_(~seen, float("-inf"))
        return first, hidden.repeat(1, 1, repeats, 1) if block.queries > 1 else hidden


def attend(
    module: Any,
    query: torch.Tensor,  # (1, heads, N, head)
    key: torch.Tensor,  # (1, kv_heads, N, head)
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sojourn_plan: Plan | Probe | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Writes the row's keys and values into the cache and attends to what is there. Returns (1, N, heads, head)."""
    if isinstance(sojourn_plan, Plan):
        out = over_cache(sojourn_plan, module.layer_idx, query, key, value, scaling, sliding_window, softcap)
        return out.unsqueeze(0), None
    if sojourn_plan is None:
        raise ModelError(
            "a model that attends through the sampler's cache was called without a plan: expected the engine's own "
            "copy of the model, configuration included: copy.deepcopy it before Engine(...)"
        )
    return sojourn_plan.note(module, query, key, value, others), None


def over_cache(
    plan: Plan,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """(N, heads, head): each block in one call, on views of the cache; key heads are never repeated in memory."""
    plan.write(layer, key, value)
    keys, values = plan.cache.layers[layer]
    heads, rows = query.shape[1:3]
    kv_heads = keys.shape[1]
    repeats = heads // kv_heads
    out = query.new_empty(rows, heads, values.shape[-1])
    for number, block in enumerate(plan.blocks):
        first, mask = plan.mask(number, window, repeats, query.dtype)
        k = keys[block.slots, :, first : block.high]
        v = values[block.slots, :, first : block.high]
        if block.queries == 1:
            q = query[0, :, block.rows].transpose(0, 1).reshape(-1, kv_heads, repeats, query.shape[-1])
            attended = _scores(q, k, v, mask, scaling, softcap)
            out[block.rows] = attended.reshape(-1, heads, out.shape[-1])
        else:
            q = query[:, :, block.rows].reshape(1, kv_heads, repeats * block.queries, query.shape[-1])
            attended = _scores(q, k, v, mask, scaling, softcap)
            out[block.rows] = attended.view(heads, block.queries, out.shape[-1]).transpose(0, 1)
    return out


def _scores(q: Any, k: Any, v: Any, mask: Any, scaling: float | None, softcap: float | None) -> torch.Tensor:
    if softcap is None:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
    scores = q @ k.transpose(-1, -2) * (scaling if scaling is not None else q.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap)
    scores = scores if mask is None else scores + mask
    return scores.float().softmax(-1).to(v.dtype) @ v


class Probe:
    """One token through the model, to see what its layers keep and that all of them attend as assumed here."""

    def __init__(self) -> None:
        self.shapes: dict[int, Shape] = {}

    def note(self, module: Any, query: Any, key: Any, value: Any, others: dict[str, Any]) -> torch.Tensor:
        unknown = [name for name in ("s_aux", "position_bias") if others.get(name) is not None]
        if unknown or not getattr(module, "is_causal", True):
            asks = f"attention with {unknown[0]}" if unknown else "attention that is not causal"
            raise ModelError(f"{type(module).__name__} asks for {asks}: this engine cannot sample from such a model")
        self.shapes[module.layer_idx] = Shape(key.shape[1], key.shape[-1], value.shape[-1])
        return value.repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(1, 2)

    def run(self, model: Any) -> list[Shape]:
        """What a token leaves in each layer. Raises `ModelError` where a layer keeps anything else."""
        AttentionInterface.register(NAME, attend)  # no mask function: transformers then builds no mask for this name
        model.set_attn_implementation(NAME)
        device = next(model.parameters()).device
        token = torch.zeros(1, 1, dtype=torch.long, device=device)
        with torch.inference_mode():
            try:
                model(input_ids=token, position_ids=token, use_cache=False, logits_to_keep=token[0], sojourn_plan=self)
            except TypeError as error:
                raise ModelError(
                    f"{type(model).__name__} does not hand its arguments on to its attention ({error}): expected a "
                    "causal language model of transformers: this engine cannot sample from such a model"
                ) from error
        text = model.config.get_text_config()
        if sorted(self.shapes) != list(range(text.num_hidden_layers)):
            raise ModelError(
                f"of the {text.num_hidden_layers} layers of '{text.model_type}', {len(self.shapes)} attend through "
                "transformers' attention interface: expected all: this engine cannot sample from such a model"
            )
        return [self.shapes[layer] for layer in sorted(self.shapes)]
