"""A trainer that can be copied, and its copy: a model that learns beside the policy, such as a reward model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sojourn.backends.torch.models.stored import StoredTensor, held
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.shards import fill, full, part_of
from sojourn.backends.torch.trainer.trainer import TorchTrainer


class TrainerCopy(TorchTrainer):
    """A trainer of a copy of the policy's weights; frozen weights are shared with it.

    Its state is saved by the component that made the copy, and not in a checkpoint's folder of weights, so `state`
    holds the weights, the reference and the optimiser's moments as arrays.
    """

    def state(self) -> Mapping[str, Any]:
        """Returns the state. Of a team, the first process has the arrays."""
        parts = {"weights": self.trainable, "reference": self._reference or {}}
        parts |= {"moments": dict(self._optimizers["policy"].moments())}
        arrays: dict[str, dict[str, Any]] = {part: {} for part in parts}
        for part, tensors in parts.items():
            for name, tensor in tensors.items():
                whole = full(tensor.detach())
                if self.team.rank == 0:
                    arrays[part][name] = whole.cpu().numpy().copy()
        return {**arrays, "step": self._step}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        def stored(part: str) -> Iterator[tuple[str, StoredTensor]]:
            return ((name, held(torch.as_tensor(value))) for name, value in state[part].items())

        fill(self.trainable, stored("weights"))
        reference = {name: part_of(self.trainable[name], value) for name, value in stored("reference")}
        self._reference = reference or None
        for path, value in stored("moments"):
            self._optimizers["policy"].restore(path, value)
        self._step = state["step"]


class CopyableTrainer(TorchTrainer):
    """The trainer of the policy, which can be copied (see `abilities.Copies`)."""

    def copy(self, optim: Any, *, reference: bool, anew: ModelPasses | None = None) -> TrainerCopy:
        """Returns a trainer of a copy of the present weights, in a stage without an end, which needs a constant
        schedule. `anew` are passes of the model as it was loaded, which take the weights: sharded ones cannot be
        copied as they are."""
        copied = TrainerCopy(anew or self.passes.copy(), _send_nowhere, self._timeline)
        with torch.no_grad():
            for name, weight in copied.trainable.items() if anew is not None else ():
                weight.copy_(self.trainable[name])
        copied.begin(optim, 1, reference=reference)
        return copied


async def _send_nowhere(weights: Iterator[tuple[str, torch.Tensor]], version: int) -> None:
    """Publishes to no sampler."""
