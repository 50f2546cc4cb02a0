"""A model's layers, passed over a tree of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sojourn.backends.torch.kernels import product
from sojourn.backends.torch.trainer import activations, layers, tree_attention
from sojourn.batch import share


class Decoder:
    """The layers of a transformers model, by the kernel where it does what they do; what they keep for the backward
    pass stays within `activation_bytes`. In bf16 it is products that are: all else is fp32 on a CPU."""

    def __init__(self, model: Any, *, bf16: bool, kernel: bool = True, activation_bytes: float = float("inf")) -> None:
        self.base = base_of(model)
        self.device = next(self.base.parameters()).device
        self.activation_bytes = activation_bytes
        own = kernel and self.device.type == "cpu"
        self.kernel, self._cast = kernel, bf16 and not own
        self._cost: activations.Cost | None = None
        tree_attention.use_packed(self.base)
        self.fused = own and layers.fuse(self.base)
        if own:
            product.use_kernel(model, bf16=bf16)

    def __call__(self, tree: share.Tree, rows: torch.Tensor) -> torch.Tensor:
        """The last hidden states of some of the nodes: (R, H)."""
        tokens, positions = (torch.from_numpy(of).to(self.device)[None] for of in (tree.tokens, tree.positions))
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._cast):
            plan = tree_attention.Plan(tree, self.device, rows, kernel=self.kernel)
            passed = self.base.get_decoder()(input_ids=tokens, position_ids=positions, use_cache=False, plan=plan)
        hidden = passed.last_hidden_state[0]
        return hidden if self.fused else hidden.index_select(0, rows)

    def recomputed(self, tokens: int) -> Sequence[Any]:
        """The layers that would keep too much for the backward pass of so many tokens."""
        each = activations.layers_of(self.base.get_decoder())
        if self._cost is None:
            self._cost = activations.measure(each, self.probe)
        return each[: self._cost.recomputed(tokens, self.activation_bytes)]

    def probe(self, tokens: int) -> None:
        self(share.line(tokens), torch.arange(tokens, device=self.device))


def base_of(model: Any) -> Any:
    """The transformers model itself, under an adapter or not."""
    return model.get_base_model() if hasattr(model, "peft_config") else model
