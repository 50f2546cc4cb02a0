"""Packs adapters for the kernel, and says to which rows of a step each is added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad

from sojourn.backends.torch.kernels.header import constants, header
from sojourn.backends.torch.kernels.kernel import Kernel
from sojourn.backends.torch.models.adapters import Adapter, LowRank
from sojourn.backends.torch.sampler.attention import Span, StepLayout

PRODUCTS = (  # of a layer: the weights that share their inputs
    tuple(f"self_attn.{part}_proj" for part in "qkv"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
SIDE_BY_SIDE = PRODUCTS[0]  # their outputs are packed as those of one weight
Shapes = Mapping[str, torch.Size]  # of the model's parameters, by name


class PackedAdapter:
    """An adapter in the kernel's layout."""

    def __init__(self, adapter: Adapter, kernel: Kernel, shapes: Shapes, layers: int) -> None:
        self._kernel, self._kept = kernel, list[torch.Tensor]()
        products = [
            self._product(adapter, {f"model.layers.{n}.{name}": shapes[f"model.layers.{n}.{name}.weight"] for name in names},
                          side_by_side=names is SIDE_BY_SIDE)
            for n in range(layers)
            for names in PRODUCTS
        ]  # fmt: skip
        self.width: int = max(product["width"] for product in products)
        self.products = header().new("struct AdaptedProduct[]", products)

    def _product(self, adapter: Adapter, shapes: Shapes, *, side_by_side: bool) -> dict[str, Any]:
        """Packs what is added to the weights of a product. Returns the fields of its C structure."""
        pairs = {name: _of_even_rank(adapter[name]) for name in shapes if name in adapter}
        total = sum(pair.rank for pair in pairs.values())
        if not total:
            return {"width": 0}
        down = self._panels(total, next(iter(shapes.values()))[1])
        weights, column, first = [], 0, 0
        for name, shape in shapes.items():
            pair = pairs.get(name)
            weights.append({} if pair is None else self._weight(pair.up, column, first))
            if pair is not None:
                self._pack(pair.down, down, column)
                column += pair.rank
            first += shape[0] if side_by_side else 0
        return {"width": len(down) * down.shape[2], "down": down.data_ptr(), "weights": weights}

    def _weight(self, up: torch.Tensor, column: int, first: int) -> dict[str, int]:
        """Packs the second factor for a weight whose outputs begin at the product's `first`."""
        panel, offset = divmod(first, self._kernel.panel_width)
        packed = self._panels(offset + len(up), up.shape[1])
        self._pack(up, packed, offset)
        fields = {"rank": up.shape[1], "column": column, "first_panel": panel, "stop_panel": panel + len(packed)}
        return {**fields, "up": packed.data_ptr()}

    def _panels(self, outputs: int, inputs: int) -> torch.Tensor:
        self._kept.append(self._kernel.panels(outputs, inputs))
        return self._kept[-1]

    def _pack(self, weight: torch.Tensor, panels: torch.Tensor, first: int) -> None:
        self._kernel.pack(weight.to(panels), panels, first)


class AdaptedRows(NamedTuple):
    """Which rows of a step, and which of its rows of logits, are of which adapter, as arrays of C structures."""

    of_all: Any
    of_logits: Any


def adapted_rows(
    adapters: Mapping[str, PackedAdapter], layout: StepLayout, logit_rows: torch.Tensor
) -> AdaptedRows | None:
    """Returns the rows of adapters; None where there are none."""
    spans = [span for span in layout.spans if span.model in adapters]
    if not spans:
        return None
    bounds = torch.tensor([[span.first, span.stop] for span in spans])
    logits = torch.searchsorted(logit_rows, bounds).tolist()
    of_logits = [Span(span.model, *ends) for span, ends in zip(spans, logits, strict=True)]
    return AdaptedRows(_array(adapters, spans), _array(adapters, of_logits))


def _array(adapters: Mapping[str, PackedAdapter], spans: Sequence[Span]) -> Any:
    return header().new("struct AdaptedRows[]", list(_parts(adapters, spans)))


def _parts(adapters: Mapping[str, PackedAdapter], spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    most = constants()["ADAPTED_ROWS"]
    for model, begin, stop in spans:
        for first in range(begin, stop, most):
            yield {"first": first, "count": min(most, stop - first), "products": adapters[model].products}


def _of_even_rank(pair: LowRank) -> LowRank:
    """Returns the same with an even rank, as the kernel multiplies bf16 in pairs."""
    odd = pair.rank % 2
    return LowRank(pad(pair.down, (0, 0, 0, odd)), pad(pair.up, (0, odd)))
