"""The critic: a value head on the policy's hidden states, or on those of a model of its own."""

from __future__ import annotations

from typing import Any

import torch

from sojourn.backends.torch.trainer.decoder import Decoder
from sojourn.batch import share

PREFIX = "critic."  # begins the names of its parameters


class Head(torch.nn.Module):
    """Maps each hidden state to a value, in fp32; before training every value is 0. With a `width` there is a hidden
    layer of that size."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(size, width) if width else None
        self.out = torch.nn.Linear(width or size, 1)
        torch.nn.init.zeros_(self.out.weight)
        torch.nn.init.zeros_(self.out.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Returns the values (n,) of hidden states (n, H). These are normalised first (layer norm), as their scale says
        nothing about returns."""
        with torch.autocast(states.device.type, enabled=False):
            rows = torch.nn.functional.layer_norm(states.float(), states.shape[-1:])
            if self.hidden is not None:
                rows = torch.nn.functional.gelu(self.hidden(rows))
            return self.out(rows)[:, 0]


class Critic:
    """A value head, with the model under it where that is not the policy. `detach` keeps the critic's gradient from the
    policy's weights."""

    def __init__(
        self, head: Head, optim: Any, *, detach: bool, model: Any = None, decoder: Decoder | None = None
    ) -> None:
        self.head, self.optim, self._detach, self.model, self.decoder = head, optim, detach, model, decoder

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns the trained parameters by name."""
        own = {} if self.model is None else dict(self.model.named_parameters())
        named = {**{f"head.{name}": p for name, p in self.head.named_parameters()}, **own}
        return {f"{PREFIX}{name}": p for name, p in named.items() if p.requires_grad}

    def __call__(self, tree: share.Tree, rows: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Returns the values (R,) of the nodes `rows` (R,) of a tree, whose hidden states in the policy are
        `states`."""
        if self.decoder is not None:
            return self.head(self.decoder(tree, rows))
        return self.head(states.detach() if self._detach else states)
