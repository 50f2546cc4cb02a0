"""Attention over a tree of packed sequences, through transformers' own attention interface.

No padding, no forked model code, and a prefix that sequences share passes through the model once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from sojourn.backends.torch.kernels import gradients
from sojourn.backends.torch.trainer import flexible
from sojourn.batch.share import Run, Tree

NAME = "sojourn_packed"
BLOCK = 128  # queries that share a mask: the fewer, the less is computed only to be hidden


class Plan:
    """Which keys meet which queries, once for all layers of a pass over a tree; and the nodes (R,), ascending, whose
    last hidden state is asked for. `kernel` allows attention by ours, where it can be had."""

    def __init__(self, tree: Tree, device: torch.device, rows: torch.Tensor | None = None, *, kernel: bool) -> None:
        self._tree, self._device, self._kernel, self.rows = tree, device, kernel and device.type == "cpu", rows
        self._block_masks: dict[tuple[int | None, bool], gradients.BlockMask] = {}

    @cached_property
    def flexible(self) -> flexible.Masks | None:
        return flexible.Masks(self._tree, self._device) if self._device.type == "cuda" else None

    @cached_property
    def cuts(self) -> Cuts:
        return Cuts(self._tree)

    def block_mask(self, own: gradients.Gradients, window: int | None, *, last: bool = False) -> gradients.BlockMask:
        """Of all nodes, or, in the `last` layer, of those asked for."""
        if (window, last) not in self._block_masks:
            self._block_masks[window, last] = own.block_mask(self._tree, window, self.rows if last else None)
        return self._block_masks[window, last]

    def own(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> gradients.Gradients | None:
        """The kernel for such rows (1, heads, M, head), where there is one."""
        if not self._kernel or {query.dtype, key.dtype, value.dtype} != {torch.float32}:
            return None
        return gradients.load(key.shape[-1], value.shape[-1], query.shape[1] // key.shape[1])


class Cuts:
    """For attention by torch: runs, cut where masks would hide much."""

    def __init__(self, tree: Tree) -> None:
        runs = [part for run in tree.runs for part in _cut(run)]
        paths = [(*run.before, (run.start, run.stop)) for run in runs]
        borders = sorted({edge for path in paths for span in path for edge in span})
        place = {border: number for number, border in enumerate(borders)}
        self.keys = [b - a for a, b in pairwise(borders)]
        self.queries = [run.stop - run.start for run in runs]
        self.pieces = [[number for a, b in path for number in range(place[a], place[b])] for path in paths]
        self._masks: dict[tuple[int, int, int | None, torch.dtype], torch.Tensor | None] = {}

    def mask(self, q: torch.Tensor, k: torch.Tensor, window: int | None) -> torch.Tensor | None:
        """What to add to the scores of queries that are the last positions; None where plain causality says it all."""
        queries, keys = q.shape[2], k.shape[2]
        key = (queries, keys, window, q.dtype)
        if key not in self._masks:
            plain = queries == keys and (window is None or keys <= window)
            self._masks[key] = None if plain else _band(q, queries, keys, window)
        return self._masks[key]


def attend(
    module: Any,
    query: torch.Tensor,  # (1, heads, M, head)
    key: torch.Tensor,  # (1, kv_heads, M, head)
    value: torch.Tensor,
    attention_mask: None,
    *,
    plan: Plan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Each node looks at itself and at the nodes before it on its path. Returns (1, M, heads, head)."""
    if plan.flexible is not None:
        mask = plan.flexible.of(sliding_window)
        return flexible.attend(mask, query, key, value, scaling, softcap), None
    own = plan.own(query, key, value) if softcap is None else None
    if own is None:
        return _by_torch(plan.cuts, query, key, value, scaling, sliding_window, softcap), None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    return own.attend(q, k, v, plan.block_mask(own, sliding_window), scale)[None], None


def _by_torch(
    cuts: Cuts,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Split once, at every border of a span: the gradient of a slice would be as long as the row."""
    keys, values = (t.split(cuts.keys, dim=2) for t in (key, value))
    parts = []
    for pieces, q in zip(cuts.pieces, query.split(cuts.queries, dim=2), strict=True):
        k, v = (_joined(row, pieces) for row in (keys, values))
        mask = cuts.mask(q, k, window)
        if softcap is not None:
            parts.append(_capped(q, k, v, mask, scaling, softcap))
        else:
            parts.append(sdpa(q, k, v, mask, is_causal=mask is None, scale=scaling, enable_gqa=True))
    return torch.cat(parts, dim=2).transpose(1, 2)


def _cut(run: Run) -> Iterator[Run]:
    """A run with nothing before it stays whole: plain causality computes nothing that it hides."""
    size = BLOCK if run.before else run.stop - run.start
    for start in range(run.start, run.stop, size):
        own = ((run.start, start),) if start > run.start else ()
        yield Run(start, min(start + size, run.stop), (*run.before, *own))


def _joined(row: Sequence[torch.Tensor], pieces: Sequence[int]) -> torch.Tensor:
    return row[pieces[0]] if len(pieces) == 1 else torch.cat([row[number] for number in pieces], dim=2)


def _band(like: torch.Tensor, queries: int, keys: int, window: int | None) -> torch.Tensor:
    """0 where a query may look, itself and the `window - 1` before it, and minus infinity elsewhere."""
    positions = torch.arange(keys, device=like.device)
    gap = positions[keys - queries :, None] - positions
    seen = (gap >= 0) & (gap < (window or keys))
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(~seen, float("-inf"))


def _capped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scaling: float | None, softcap: float
) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * (scaling if scaling is not None else q.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap)
    mask = _band(q, q.shape[2], k.shape[2], None) if mask is None else mask
    return (scores + mask).softmax(-1) @ v


def use_packed(model: Any) -> None:
    """Makes a transformers model attend by `plan=`; its forward then takes one packed row at a time."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
    model.set_attn_implementation(NAME)
