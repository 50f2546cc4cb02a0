"""Attention over packed sequences, through transformers' own attention interface: no padding, no forked model code."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

NAME = "sojourn_packed"


class Packing(NamedTuple):
    """The sequences of a packed row: where each starts, and where the last one ends."""

    starts: tuple[int, ...]


def attend(
    module: Any,
    query: torch.Tensor,  # (1, heads, N, head)
    key: torch.Tensor,  # (1, kv_heads, N, head)
    value: torch.Tensor,
    attention_mask: None,
    *,
    packing: Packing,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sequence. Returns (1, N, heads, head)."""
    parts = []
    for start, stop in zip(packing.starts, packing.starts[1:], strict=False):
        q, k, v = (t[:, :, start:stop] for t in (query, key, value))
        length = stop - start
        if softcap is not None:
            parts.append(_capped(q, k, v, scaling, sliding_window, softcap))
        elif sliding_window is not None and length > sliding_window:
            mask = _band(length, sliding_window, q.device)
            parts.append(sdpa(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=True))
        else:
            parts.append(sdpa(q, k, v, is_causal=True, scale=scaling, enable_gqa=True))
    return torch.cat(parts, dim=2).transpose(1, 2), None


def _band(length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """True where a position may look: itself and the `window - 1` before it."""
    gap = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    return (gap >= 0) & (gap < (window or length))


def _capped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float | None, window: int | None, softcap: float
) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * (scaling if scaling is not None else q.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~_band(q.shape[2], window, q.device), float("-inf"))
    return scores.softmax(-1) @ v


def use_packed(model: Any) -> None:
    """Makes a transformers model attend by `packing=`; its forward then takes one packed row at a time."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
    model.set_attn_implementation(NAME)
