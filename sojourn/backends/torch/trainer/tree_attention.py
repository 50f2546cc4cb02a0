"""Computes attention over a tree of packed sequences, through transformers' own attention interface.

Nothing is padded, no model code is copied, and a prefix that sequences share passes through the model once.
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
from sojourn.backends.torch.trainer import flex_attention
from sojourn.backends.torch.trainer.context_parallel import Division
from sojourn.batch.share import Segment, Tree

NAME = "sojourn_packed"
BLOCK = 128  # queries that share a mask: with smaller blocks, fewer scores are computed only to be masked


class TreeMask:
    """Says which keys each query attends to, once for all layers of a pass over a tree.

    The queries are those of all nodes or, of a `division`, of those that are computed here. `rows` (R,), ascending, are
    the queries whose last hidden states are requested. `kernel` allows attention by our kernel, where it can be
    compiled.
    """

    def __init__(
        self,
        tree: Tree,
        device: torch.device,
        rows: torch.Tensor | None = None,
        *,
        kernel: bool,
        division: Division | None = None,
    ) -> None:
        self._tree, self._device, self._kernel, self.rows = tree, device, kernel and device.type == "cpu", rows
        self.division, self._nodes = division, None if division is None else torch.from_numpy(division.nodes).to(device)
        self._block_masks: dict[tuple[int | None, bool], gradients.BlockMask] = {}

    @cached_property
    def block_masks(self) -> flex_attention.BlockMasks | None:
        if self._device.type != "cuda":
            return None
        return flex_attention.BlockMasks(self._tree, self._device, self._nodes)

    @cached_property
    def blocks(self) -> Blocks:
        return Blocks(self._tree, self._tree.segments if self.division is None else self.division.segments)

    def gather(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the keys and values (M, kv_heads, head) of all nodes from those of the queries' nodes."""
        if self.division is None:
            return key, value
        both = self.division.gather(torch.cat([key, value], -1))
        return both[..., : key.shape[-1]], both[..., key.shape[-1] :]

    def block_mask(
        self, kernel: gradients.TrainerKernel, window: int | None, *, last: bool = False
    ) -> gradients.BlockMask:
        """Returns the kernel's mask for all queries or, in the `last` layer, for the requested ones."""
        if (window, last) not in self._block_masks:
            nodes = self._nodes
            if last:
                nodes = self.rows if nodes is None or self.rows is None else nodes[self.rows]
            self._block_masks[window, last] = kernel.block_mask(self._tree, window, nodes)
        return self._block_masks[window, last]

    def kernel_for(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> gradients.TrainerKernel | None:
        """Returns the kernel for rows of these shapes (1, heads, M, head), or None where there is none."""
        if not self._kernel or {query.dtype, key.dtype, value.dtype} != {torch.float32}:
            return None
        return gradients.load(key.shape[-1], value.shape[-1], query.shape[1] // key.shape[1])


class Blocks:
    """The blocks of a tree for attention by torch: segments, or parts of them, divided where a mask would hide many
    scores.

    `queries` are their lengths; `pieces` are, for each, the parts of the row that it attends to, by number, where the
    row is split into parts of the lengths `keys`.
    """

    def __init__(self, tree: Tree, parts: Sequence[Segment]) -> None:
        segments = [block for segment in parts for block in _divided(segment)]
        paths = [(*segment.before, (segment.start, segment.stop)) for segment in segments]
        borders = sorted({0, len(tree.tokens)}.union(edge for path in paths for span in path for edge in span))
        place = {border: number for number, border in enumerate(borders)}
        self.keys = [b - a for a, b in pairwise(borders)]
        self.queries = [segment.stop - segment.start for segment in segments]
        self.pieces = [[number for a, b in path for number in range(place[a], place[b])] for path in paths]
        self._masks: dict[tuple[int, int, int | None, torch.dtype], torch.Tensor | None] = {}

    def mask(self, q: torch.Tensor, k: torch.Tensor, window: int | None) -> torch.Tensor | None:
        """Returns the additive mask for queries at the last positions; None where plain causal attention is the
        same."""
        queries, keys = q.shape[2], k.shape[2]
        key = (queries, keys, window, q.dtype)
        if key not in self._masks:
            plain = queries == keys and (window is None or keys <= window)
            self._masks[key] = None if plain else _causal_mask(q, queries, keys, window)
        return self._masks[key]


def attend(
    module: Any,
    query: torch.Tensor,  # (1, heads, Q, head)
    key: torch.Tensor,  # (1, kv_heads, Q, head)
    value: torch.Tensor,
    attention_mask: None,
    *,
    tree_mask: TreeMask,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Attends from the node of each query to itself and to the nodes before it on its path. Returns (1, Q, heads,
    head)."""
    if tree_mask.division is not None:
        key, value = (t.transpose(0, 1)[None] for t in tree_mask.gather(*(t[0].transpose(0, 1) for t in (key, value))))
    if tree_mask.block_masks is not None:
        mask = tree_mask.block_masks.of(sliding_window)
        return flex_attention.attend(mask, query, key, value, scaling, softcap), None
    kernel = tree_mask.kernel_for(query, key, value) if softcap is None else None
    if kernel is None:
        return _by_torch(tree_mask.blocks, query, key, value, scaling, sliding_window, softcap), None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    return kernel.attend(q, k, v, tree_mask.block_mask(kernel, sliding_window), scale)[None], None


def _by_torch(
    blocks: Blocks,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attends block by block. Keys and values are split once, at every border of a block or a path, as the gradient of
    a slice would be as long as the whole row."""
    keys, values = (t.split(blocks.keys, dim=2) for t in (key, value))
    parts = []
    for pieces, q in zip(blocks.pieces, query.split(blocks.queries, dim=2), strict=True):
        k, v = (_concatenated(row, pieces) for row in (keys, values))
        mask = blocks.mask(q, k, window)
        if softcap is not None:
            parts.append(_softcapped_attention(q, k, v, mask, scaling, softcap))
        else:
            parts.append(sdpa(q, k, v, mask, is_causal=mask is None, scale=scaling, enable_gqa=True))
    return torch.cat(parts, dim=2).transpose(1, 2)


def _divided(segment: Segment) -> Iterator[Segment]:
    """Divides a segment into blocks. A segment without a prefix stays whole, as plain causal attention computes no
    score that is then masked."""
    size = BLOCK if segment.before else segment.stop - segment.start
    for start in range(segment.start, segment.stop, size):
        own = ((segment.start, start),) if start > segment.start else ()
        yield Segment(start, min(start + size, segment.stop), (*segment.before, *own))


def _concatenated(row: Sequence[torch.Tensor], pieces: Sequence[int]) -> torch.Tensor:
    return row[pieces[0]] if len(pieces) == 1 else torch.cat([row[number] for number in pieces], dim=2)


def _causal_mask(like: torch.Tensor, queries: int, keys: int, window: int | None) -> torch.Tensor:
    """Returns an additive mask: 0 where a query may attend (to itself and the `window - 1` keys before it), minus
    infinity elsewhere."""
    positions = torch.arange(keys, device=like.device)
    gap = positions[keys - queries :, None] - positions
    seen = (gap >= 0) & (gap < (window or keys))
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(~seen, float("-inf"))


def _softcapped_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scaling: float | None, softcap: float
) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * (scaling if scaling is not None else q.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap)
    mask = _causal_mask(q, q.shape[2], k.shape[2], None) if mask is None else mask
    return (scores + mask).softmax(-1) @ v


def use_packed(model: Any) -> None:
    """Makes a transformers model attend by the argument `tree_mask`; its forward then takes one packed row at a
    time."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
    model.set_attn_implementation(NAME)
