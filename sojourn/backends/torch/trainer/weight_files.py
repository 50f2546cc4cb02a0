"""The trainer's files in a checkpoint: trained weights, the reference's, and the optimisers' moments, as
safetensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from sojourn.backends.torch.models.stored import StoredTensor, stored
from sojourn.backends.torch.trainer.shards import fill, full
from sojourn.errors import RecordError

Parameters = Mapping[str, torch.nn.Parameter]
WEIGHTS, CRITIC, REFERENCE, OPTIMIZER = (
    f"{name}.safetensors" for name in ("weights", "critic", "reference", "optimizer")
)


def save(tensors: Iterable[tuple[str, torch.Tensor]], path: Path, *, write: bool = True) -> None:
    """Writes whole tensors, which are gathered one by one where they are sharded; one process of a team does
    `write`."""
    gathered = ((name, full(tensor.detach())) for name, tensor in tensors)
    found = {name: tensor.contiguous().cpu() for name, tensor in gathered if write}
    if write:
        save_file(found, path)


def save_weights(folder: Path, policy: Parameters, critic: Parameters | None, *, write: bool = True) -> None:
    """Writes the trained weights of the policy, and those of the critic where there is one."""
    save(policy.items(), folder / WEIGHTS, write=write)
    if critic is not None:
        save(critic.items(), folder / CRITIC, write=write)


def load_weights(folder: Path, policy: Parameters, critic: Parameters | None, *, weights_only: bool) -> None:
    """Fills the parameters with what `save_weights` wrote. Raises `RecordError` where it is of another model.

    The critic stays as it is where the folder is of a run without one, which is refused unless `weights_only`.
    """
    _fill(policy, dict(stored(folder / WEIGHTS)), folder)
    if critic is None:
        return
    if (folder / CRITIC).exists():
        _fill(critic, dict(stored(folder / CRITIC)), folder)
    elif not weights_only:
        raise RecordError(f"the checkpoint '{folder}' has no critic: resume with the recipe that it was made with")


def _fill(parameters: Parameters, weights: Mapping[str, StoredTensor], folder: Path) -> None:
    if set(weights) != set(parameters):
        odd = sorted(set(weights) ^ set(parameters))[0]
        raise RecordError(
            f"the checkpoint '{folder}' holds {len(weights)} tensors, this model trains {len(parameters)} (the first "
            f"that differs: {odd}): use the model and lora settings that it was made with"
        )
    for name, value in weights.items():
        if tuple(parameters[name].shape) != value.shape:
            raise RecordError(
                f"the checkpoint '{folder}' has '{name}' of shape {value.shape}, this model "
                f"{tuple(parameters[name].shape)}: use the model that it was made with"
            )
    fill(parameters, weights.items())
