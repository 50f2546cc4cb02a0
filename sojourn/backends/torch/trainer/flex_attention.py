"""Computes attention over a tree of tokens on CUDA devices by torch's FlexAttention, compiled, with a block mask.

On other devices FlexAttention computes every score and has no gradient, so `tree_attention` attends block by block.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from sojourn.batch.share import Tree


class BlockMasks:
    """The block masks of a tree, one for each sliding window that the layers have.

    Nodes are in depth-first order, so the descendants of node k are the nodes from k + 1 to `ends[k] - 1`: node q
    attends to node k if k <= q < `ends[k]`. The queries are those of all nodes, or of `nodes` (Q,), ascending.
    """

    def __init__(self, tree: Tree, device: torch.device, nodes: torch.Tensor | None = None) -> None:
        self._nodes = torch.arange(len(tree.tokens), device=device) if nodes is None else nodes
        self._end = torch.from_numpy(tree.ends).to(device)
        self._position = torch.from_numpy(tree.positions).to(device)
        self._masks: dict[int | None, BlockMask] = {}

    def of(self, window: int | None) -> BlockMask:
        """Returns the mask for this window, or for full attention where it is None."""
        if window not in self._masks:
            queries, keys = len(self._nodes), len(self._end)
            self._masks[window] = create_block_mask(self._mask_mod(window), None, None, queries, keys, self._end.device)
        return self._masks[window]

    def _mask_mod(self, window: int | None) -> Any:
        end, position, nodes = self._end, self._position, self._nodes

        def visible(batch: Any, head: Any, query: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            q = nodes[query]
            path = (k <= q) & (q < end[k])
            return path if window is None else path & (position[q] - position[k] < window)

        return visible


def attend(
    mask: BlockMask,
    query: torch.Tensor,  # (1, heads, Q, head)
    key: torch.Tensor,  # (1, kv_heads, M, head)
    value: torch.Tensor,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    """Returns the attention of each query: (1, Q, heads, head)."""
    kernel = _compiled() if query.is_cuda else flex_attention
    key, value = key.to(query.dtype), value.to(query.dtype)
    options: Any = {"FORCE_USE_FLEX_ATTENTION": True}  # for few queries, some releases have no working kernel
    attended = kernel(query, key, value, _softcap(softcap), mask, scaling, enable_gqa=True, kernel_options=options)
    return attended.transpose(1, 2)


@cache
def _softcap(softcap: float | None) -> Any:
    if softcap is None:
        return None
    return lambda score, batch, head, q, k: softcap * torch.tanh(score / softcap)


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=True)
