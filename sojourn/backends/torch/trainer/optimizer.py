"""AdamW over some of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sojourn.errors import ModelError


class Optimizer:
    """One stage's optimiser over parameters by name, its learning rate along its schedule of `steps` updates."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], optim: Any, steps: int) -> None:
        self.parameters, self._optim, self._steps = parameters, optim, steps
        betas = (optim.betas[0], optim.betas[1])
        self._adam = torch.optim.AdamW(
            list(parameters.values()), lr=optim.lr, betas=betas, weight_decay=optim.weight_decay, fused=True
        )

    def clip(self, step: int, whose: str) -> float:
        """Bounds the gradient's norm, and gives what it was; 0 without a gradient. Raises `ModelError` where it is not
        finite."""
        found = [p for p in self.parameters.values() if p.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(found, self._optim.clip_norm or float("inf")) if found else torch.zeros(1)
        if not torch.isfinite(norm):
            raise ModelError(
                f"the {whose}'s gradient of update {step} of this stage is not finite: lower its lr, or look for huge "
                "rewards, advantages or coefficients"
            )
        return float(norm)

    def update(self, step: int) -> float:
        """Update number `step`, from 0 on; gives its learning rate. Parameters without a gradient stay as they are."""
        lr = self._optim.lr * self._optim.schedule(step, self._steps)
        for group in self._adam.param_groups:
            group["lr"] = lr
        self._adam.step()
        self.drop_gradient()
        return lr

    def drop_gradient(self) -> None:
        self._adam.zero_grad(set_to_none=True)

    def moments(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What the optimiser remembers, by "parameter/moment"."""
        for name, parameter in self.parameters.items():
            for key, value in self._adam.state.get(parameter, {}).items():
                yield f"{name}/{key}", value.contiguous()

    def restore(self, path: str, value: torch.Tensor) -> None:
        """One of `moments`, put back."""
        name, _, key = path.rpartition("/")
        parameter = self.parameters[name]
        self._adam.state[parameter][key] = value.to(parameter.device)
