"""Packs adapters for the kernel, and says to which rows of a step each is added."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad

from sojourn.backends.torch.kernels.header import constants, header
from sojourn.backends.torch.kernels.kernel import Kernel, large_memory
from sojourn.backends.torch.models.adapters import Adapter, LowRank
from sojourn.backends.torch.sampler.attention import Span, StepLayout

PRODUCTS = (  # of a layer: the weights that share their inputs
    tuple(f"self_attn.{part}_proj" for part in "qkv"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
SIDE_BY_SIDE = PRODUCTS[0]  # their outputs are packed as those of one weight


@dataclass(eq=False)
class Up:
    """The second factor of one weight of a product. Those of all adapters lie side by side for each panel, so that
    memory is read from front to back where they are added to one panel after another."""

    rank: int
    column: int  # of the first factors of a product, side by side
    first_panel: int  # of the product
    panels: torch.Tensor  # (panels, rank * panel width)


@dataclass(eq=False)
class Product:
    """The packed factors of an adapter for the weights of one product."""

    down: torch.Tensor | None  # (vectors, inputs, lanes): the first factors of its weights; None where none is adapted
    ups: list[Up | None]  # of each weight

    @property
    def width(self) -> int:
        return 0 if self.down is None else self.down.shape[0] * self.down.shape[2]

    def move(self, down: torch.Tensor) -> None:
        self.down = down

    def fields(self) -> dict[str, Any]:
        """Returns the fields of its C structure."""
        weights = [{} if up is None else _fields(up) for up in self.ups]
        return {"width": self.width, "down": 0 if self.down is None else self.down.data_ptr(), "weights": weights}


class AdaptedRows(NamedTuple):
    """Tells, in C structures, which rows of a step and which of its rows of logits belong to which adapter."""

    of_all: Any
    of_logits: Any


class CAdapters:
    """The adapters over a model in the kernel's layout. `shapes` are those of the model's weights, by their names."""

    def __init__(self, kernel: Kernel, shapes: Mapping[str, torch.Size], layers: int) -> None:
        self._kernel, self._shapes, self._layers = kernel, shapes, layers
        self._packed: dict[str, list[Product]] = {}  # by adapter: the products of all layers
        self._structures: dict[str, Any] = {}  # by adapter: the same, as an array of C structures

    @property
    def width(self) -> int:
        """Returns how many numbers the first factors make of a row, at most."""
        return max((product.width for products in self._packed.values() for product in products), default=0)

    def add(self, name: str, adapter: Adapter) -> None:
        self._packed[name] = [
            self._product(adapter, names, f"model.layers.{n}") for n in range(self._layers) for names in PRODUCTS
        ]
        self._join()

    def drop(self, name: str) -> None:
        del self._packed[name]
        self._join()

    def rows(self, layout: StepLayout, logit_rows: torch.Tensor) -> AdaptedRows | None:
        """Returns the rows to which adapters are added; None where there are none."""
        spans = [span for span in layout.spans if span.model in self._packed]
        if not spans:
            return None
        bounds = torch.tensor([[span.first, span.stop] for span in spans])
        logits = torch.searchsorted(logit_rows, bounds).tolist()
        of_logits = [Span(span.model, *ends) for span, ends in zip(spans, logits, strict=True)]
        return AdaptedRows(self._array(spans), self._array(of_logits))

    def _array(self, spans: Sequence[Span]) -> Any:
        return header().new("struct AdaptedRows[]", list(self._parts(spans)))

    def _parts(self, spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
        most = constants()["ADAPTED_ROWS"]
        for model, begin, stop in spans:
            for first in range(begin, stop, most):
                yield {"first": first, "count": min(most, stop - first), "products": self._structures[model]}

    def _product(self, adapter: Adapter, names: Sequence[str], layer: str) -> Product:
        """Packs what is added to the weights of a product."""
        pairs = {name: _of_even_rank(adapter[f"{layer}.{name}"]) for name in names if f"{layer}.{name}" in adapter}
        if not pairs:
            return Product(None, [])
        ups, column, first = list[Up | None](), 0, 0
        for name in names:
            if (pair := pairs.get(name)) is None:
                ups.append(None)
            else:
                panel, offset = divmod(first, self._kernel.panel_width)
                ups.append(Up(pair.rank, column, panel, self._packed_up(pair.up, offset)))
                column += pair.rank
            if names is SIDE_BY_SIDE:
                first += self._shapes[f"{layer}.{name}.weight"][0]
        return Product(self._packed_down(torch.cat([pair.down for pair in pairs.values()])), ups)

    def _packed_down(self, down: torch.Tensor) -> torch.Tensor:
        """Packs first factors (width, inputs): a vector of the processor holds numbers of several outputs, those of two
        inputs next to each other in bf16."""
        lanes, pair = self._kernel.panel_width // 2, 4 // self._kernel.dtype.itemsize
        whole = pad(down.to(self._kernel.dtype), (0, 0, 0, -len(down) % lanes))
        by_input = whole.view(-1, lanes, down.shape[1] // pair, pair).transpose(1, 2)
        return by_input.contiguous().view(-1, down.shape[1], lanes)

    def _packed_up(self, up: torch.Tensor, first: int) -> torch.Tensor:
        """Packs a second factor, whose outputs begin at the `first` of their panels."""
        panels = self._kernel.panels(first + len(up), up.shape[1])
        self._kernel.pack(up.to(panels), panels, first)
        return panels.flatten(1)

    def _join(self) -> None:
        """Moves all adapters into one memory, in the order in which a step reads it."""
        moved = list[tuple[torch.Tensor, Callable[[torch.Tensor], None]]]()
        for products in zip(*self._packed.values(), strict=True):
            moved += [(product.down, product.move) for product in products if product.down is not None]
            for place in range(max(len(product.ups) for product in products)):
                ups = [up for product in products if product.ups and (up := product.ups[place]) is not None]
                if ups:
                    moved.append((torch.cat([up.panels for up in ups], dim=1), partial(_divide, ups)))
        memory = large_memory(sum(tensor.numel() for tensor, _ in moved), self._kernel.dtype)
        for (tensor, move), to in zip(moved, memory.split([tensor.numel() for tensor, _ in moved]), strict=True):
            move(to.view(tensor.shape).copy_(tensor))
        self._structures = {
            name: header().new("struct AdaptedProduct[]", [product.fields() for product in products])
            for name, products in self._packed.items()
        }


def _divide(ups: Sequence[Up], joined: torch.Tensor) -> None:
    for up, panels in zip(ups, joined.split([up.panels.shape[1] for up in ups], dim=1), strict=True):
        up.panels = panels


def _fields(up: Up) -> dict[str, int]:
    return {
        "rank": up.rank,
        "column": up.column,
        "first_panel": up.first_panel,
        "stop_panel": up.first_panel + len(up.panels),
        "up_stride": up.panels.stride(0),
        "up": up.panels.data_ptr(),
    }


def _of_even_rank(pair: LowRank) -> LowRank:
    """Returns the same with an even rank, as the kernel multiplies bf16 in pairs."""
    odd = pair.rank % 2
    return LowRank(pad(pair.down, (0, 0, 0, odd)), pad(pair.up, (0, odd)))
