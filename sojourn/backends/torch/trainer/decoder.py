"""The decoder: passes a tree of tokens through a model's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sojourn.backends.torch.kernels import product
from sojourn.backends.torch.trainer import activations, fused_layers, tree_attention
from sojourn.batch import share


class Decoder:
    """The decoder layers of a transformers model. Layers of a form that our kernel supports are computed by it.

    `layers_to_recompute` says which layers to checkpoint so that activations stay within `activation_bytes`. With
    `bf16`, on a CPU, the factors of matrix products are bf16 and everything else is fp32.
    """

    def __init__(self, model: Any, *, bf16: bool, kernel: bool = True, activation_bytes: float = float("inf")) -> None:
        self.base = base_of(model)
        self.device = next(self.base.parameters()).device
        self.activation_bytes = activation_bytes
        native = kernel and self.device.type == "cpu"
        self.kernel, self._autocast = kernel, bf16 and not native
        self._cost: activations.Cost | None = None
        tree_attention.use_packed(self.base)
        self.fused = native and fused_layers.fuse(self.base)
        if native:
            product.use_kernel(model, bf16=bf16)

    def __call__(self, tree: share.Tree, rows: torch.Tensor) -> torch.Tensor:
        """Returns the last hidden states (R, H) of the nodes `rows` (R,), ascending."""
        tokens, positions = (torch.from_numpy(ids).to(self.device)[None] for ids in (tree.tokens, tree.positions))
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._autocast):
            tree_mask = tree_attention.TreeMask(tree, self.device, rows, kernel=self.kernel)
            output = self.base.get_decoder()(
                input_ids=tokens, position_ids=positions, use_cache=False, tree_mask=tree_mask
            )
        hidden = output.last_hidden_state[0]
        return hidden if self.fused else hidden.index_select(0, rows)

    def layers_to_recompute(self, tokens: int) -> Sequence[Any]:
        """Returns the layers to checkpoint (recompute in the backward pass) in a pass of this many tokens."""
        layers = activations.layers_of(self.base.get_decoder())
        if self._cost is None:
            self._cost = activations.measure(layers, self.probe)
        return layers[: self._cost.count_to_recompute(tokens, self.activation_bytes)]

    def probe(self, tokens: int) -> None:
        """Passes one sequence of this length."""
        self(share.line(tokens), torch.arange(tokens, device=self.device))


def base_of(model: Any) -> Any:
    """Returns the transformers model itself, without the adapters around it."""
    return model.get_base_model() if hasattr(model, "peft_config") else model
