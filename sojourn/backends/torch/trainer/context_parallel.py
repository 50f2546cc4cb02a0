"""Context parallelism: processes share each tree of tokens, so that contexts can be trained that are too long for one.

Each process computes its part of the nodes. Only attention looks at other nodes: keys and values are gathered before
it, and their gradients are added up while they are divided again. Nodes are divided into twice as many runs as there
are processes, of which each takes one from the front and one from the back, as later nodes have more keys to attend to
(Llama 3, arXiv:2407.21783, section 3.3.2; there it is a sequence that is divided, and not a tree).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from sojourn.batch.share import Segment, Tree
from sojourn.types import IntArray


class Layout(NamedTuple):
    """Says where things that are divided between processes lie when they are gathered: each process's in their order,
    padded to the `most` that one of the `processes` has. `own` (m,) are the numbers of those that are here."""

    own: IntArray
    place: torch.Tensor  # (n,)
    most: int
    processes: int

    @classmethod
    def of(cls, owners: IntArray, rank: int, count: int) -> Layout:
        """`owners` (n,) says which of `count` processes has each."""
        most = int(np.bincount(owners, minlength=count).max(initial=0))
        place = np.empty(len(owners), dtype=np.int64)
        for one in range(count):
            held = np.flatnonzero(owners == one)
            place[held] = one * most + np.arange(len(held))
        return cls(np.flatnonzero(owners == rank), torch.from_numpy(place), most, count)


class ContextGroup:
    """The processes that share each tree, and the place of this one among them. All of them must make the same passes
    in the same order."""

    def __init__(self, rank: int, count: int, group: Any = None) -> None:
        self.rank, self.count, self.group = rank, count, group

    def divide(self, tree: Tree) -> Division:
        return Division(self, tree)


class Division:
    """A tree whose nodes are divided between the processes of a group."""

    def __init__(self, group: ContextGroup, tree: Tree) -> None:
        self._group, self._tree = group, tree
        edges = np.arange(2 * group.count + 1) * len(tree.tokens) // (2 * group.count)
        self._runs = [(int(edges[n]), int(edges[n + 1])) for n in (group.rank, 2 * group.count - 1 - group.rank)]
        run = np.repeat(np.arange(2 * group.count), np.diff(edges))
        self.owners: IntArray = np.minimum(run, 2 * group.count - 1 - run)

    @cached_property
    def nodes(self) -> IntArray:
        """Returns the nodes that are computed here, ascending: (m,). Where a tree has fewer nodes than there are
        processes, some compute the first, too, which nobody reads."""
        return self._layout.own if len(self._layout.own) else np.zeros(1, dtype=np.int64)

    @property
    def segments(self) -> list[Segment]:
        """Returns the parts of the tree's segments that are computed here."""
        found = []
        for segment in self._tree.segments:
            for first, last in self._runs:
                start, stop = max(segment.start, first), min(segment.stop, last)
                if start < stop:
                    own = ((segment.start, start),) if start > segment.start else ()
                    found.append(Segment(start, stop, (*segment.before, *own)))
        return found or [Segment(0, 1, ())]

    def here(self, nodes: IntArray) -> NDArray[np.bool_]:
        """Returns which of some nodes are computed here."""
        return self.owners[nodes] == self._group.rank

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the rows (M, ...) of all nodes from those of this process (m, ...). Their gradients are added up over
        all processes."""
        return _Gather.apply(rows, self._layout, self._group.group)

    def collect(self, rows: torch.Tensor, nodes: IntArray) -> torch.Tensor:
        """Returns rows (n, ...), each of a node, from those whose nodes are here (k, ...). What follows must be the
        same in all processes: each takes the gradient of its own rows as it is."""
        layout = Layout.of(self.owners[nodes], self._group.rank, self._group.count)
        return _Collect.apply(rows, layout, self._group.group)

    @cached_property
    def _layout(self) -> Layout:
        return Layout.of(self.owners, self._group.rank, self._group.count)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, layout: Layout, group: Any) -> torch.Tensor:
        ctx.layout, ctx.group, ctx.count = layout, group, len(rows)
        return _gathered(rows, layout, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        layout: Layout = ctx.layout
        count = len(layout.own)
        padded = grad.new_zeros(layout.processes * layout.most, *grad.shape[1:])
        padded[layout.place.to(grad.device)] = grad
        own = grad.new_empty(layout.most, *grad.shape[1:])
        dist.reduce_scatter_tensor(own, padded, group=ctx.group)
        return own[:count] if count == ctx.count else grad.new_zeros(ctx.count, *grad.shape[1:]), None, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, layout: Layout, group: Any) -> torch.Tensor:
        ctx.own = layout.own
        return _gathered(rows, layout, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad[torch.from_numpy(ctx.own).to(grad.device)], None, None


def _gathered(rows: torch.Tensor, layout: Layout, group: Any) -> torch.Tensor:
    padded = rows.new_zeros(layout.most, *rows.shape[1:])
    padded[: len(layout.own)] = rows[: len(layout.own)]
    whole = rows.new_empty(layout.processes * layout.most, *rows.shape[1:])
    dist.all_gather_into_tensor(whole, padded, group=group)
    return whole[layout.place.to(rows.device)]
