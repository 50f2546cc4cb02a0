"""Attention over a tree of packed sequences, through transformers' own attention interface.

No padding, no forked model code, and a prefix that sequences share passes through the model once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from sojourn.batch.share import Run

NAME = "sojourn_packed"


def attend(
    module: Any,
    query: torch.Tensor,  # (1, heads, M, head)
    key: torch.Tensor,  # (1, kv_heads, M, head)
    value: torch.Tensor,
    attention_mask: None,
    *,
    runs: tuple[Run, ...],
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Each node looks at itself and at the nodes before it on its path. Returns (1, M, heads, head).

    Keys and values are split once, at every border of a span: the gradient of a slice would be as long as the row.
    """
    paths = [(*run.before, (run.start, run.stop)) for run in runs]
    borders = sorted({edge for path in paths for span in path for edge in span})
    place = {border: number for number, border in enumerate(borders)}
    keys, values = (t.split([b - a for a, b in pairwise(borders)], dim=2) for t in (key, value))
    queries = query.split([run.stop - run.start for run in runs], dim=2)
    parts = []
    for run, path, q in zip(runs, paths, queries, strict=True):
        pieces = [number for a, b in path for number in range(place[a], place[b])]
        k, v = (torch.cat([row[number] for number in pieces], dim=2) for row in (keys, values))
        if softcap is not None:
            parts.append(_capped(q, k, v, scaling, sliding_window, softcap))
        elif run.before or (sliding_window is not None and k.shape[2] > sliding_window):
            mask = _band(q, k, sliding_window)
            parts.append(sdpa(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=True))
        else:
            parts.append(sdpa(q, k, v, is_causal=True, scale=scaling, enable_gqa=True))
    return torch.cat(parts, dim=2).transpose(1, 2), None


def _band(q: torch.Tensor, k: torch.Tensor, window: int | None) -> torch.Tensor:
    """True where a query, one of the last positions, may look: itself and the `window - 1` before it."""
    queries, keys = q.shape[2], k.shape[2]
    positions = torch.arange(keys, device=q.device)
    gap = positions[keys - queries :, None] - positions
    return (gap >= 0) & (gap < (window or keys))


def _capped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float | None, window: int | None, softcap: float
) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * (scaling if scaling is not None else q.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~_band(q, k, window), float("-inf"))
    return scores.softmax(-1) @ v


def use_packed(model: Any) -> None:
    """Makes a transformers model attend by `runs=`; its forward then takes one packed row at a time."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
    model.set_attn_implementation(NAME)
