"""AdamW with a learning rate schedule and an optional outer step, over the policy's weights or the critic's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sojourn.backends.torch.models.stored import StoredTensor
from sojourn.backends.torch.trainer.shards import full, part_of
from sojourn.errors import ModelError

SLOW = "slow"  # names the slow weights beside the moments of AdamW


class Optimizer:
    """The optimiser of one stage over parameters by name; its learning rate follows a schedule of `updates` updates.

    With `optim.lookahead`, the slow weights are kept within a cycle alone, as they are the weights themselves where it
    begins and ends.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], optim: Any, updates: int) -> None:
        self.parameters, self._optim, self._updates = parameters, optim, updates
        betas = (optim.betas[0], optim.betas[1])
        self._adam = torch.optim.AdamW(
            list(parameters.values()), lr=optim.lr, betas=betas, weight_decay=optim.weight_decay, fused=True
        )
        self._slow: dict[str, torch.Tensor] = {}

    def clip(self, number: int, whose: str) -> float:
        """Clips the gradient's norm, and returns what it was; 0 without a gradient. Raises `ModelError` where it is not
        finite."""
        trained, limit = [p for p in self.parameters.values() if p.grad is not None], self._optim.clip_norm
        clipped = torch.nn.utils.clip_grad_norm_(trained, limit or float("inf")) if trained else torch.zeros(1)
        norm = full(clipped)
        if not torch.isfinite(norm):
            raise ModelError(
                f"the {whose}'s gradient of update {number} of this stage is not finite: lower its lr, or look for "
                "huge rewards, advantages or coefficients"
            )
        return float(norm)

    def update(self, number: int) -> float:
        """Takes an update, the first of number 0, and returns its learning rate; parameters without a gradient stay.
        The last update of a cycle takes the outer step, too."""
        outer = self._optim.lookahead
        if outer is not None and number % outer.every == 0:
            self._slow = {name: p.detach().clone() for name, p in self.parameters.items()}
        lr = self._optim.lr * self._optim.schedule(number, self._updates)
        for group in self._adam.param_groups:
            group["lr"] = lr
        self._adam.step()
        self.drop_gradient()
        if outer is not None and (number + 1) % outer.every == 0:
            self._take_outer_step(outer.fraction)
        return lr

    def drop_gradient(self) -> None:
        self._adam.zero_grad(set_to_none=True)

    def moments(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the moments and step counts of AdamW as ("parameter/moment", value), and slow weights alike."""
        for name, parameter in self.parameters.items():
            for key, value in self._adam.state.get(parameter, {}).items():
                yield f"{name}/{key}", value
        for name, slow in self._slow.items():
            yield f"{name}/{SLOW}", slow

    def restore(self, path: str, value: StoredTensor) -> None:
        """Puts back one of `moments`."""
        name, _, key = path.rpartition("/")
        parameter = self.parameters[name]
        moved = part_of(parameter, value)
        if key == SLOW:
            self._slow[name] = moved
        else:
            self._adam.state[parameter][key] = moved

    @torch.no_grad()
    def _take_outer_step(self, fraction: float) -> None:
        """Takes the weights back to a fraction of the way that they went since the cycle began, and ends the cycle."""
        for name, slow in self._slow.items():
            self.parameters[name].copy_(slow.lerp_(self.parameters[name], fraction))
        self._slow.clear()
