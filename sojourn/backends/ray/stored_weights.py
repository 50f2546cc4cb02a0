"""Names the weights of a checkpoint, which samplers read from its folder themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from sojourn.backends.ray.packed_weights import PackedWeights
    from sojourn.backends.torch.backend import Torch
    from sojourn.models.spec import Model


@dataclass(frozen=True)
class StoredWeights:
    """Says where a checkpoint's weights of a model lie. A sampler is given it in place of `PackedWeights`, and reads
    the weights from `folder`, also after it was started anew. All nodes have the folder at the same path."""

    torch: Torch
    model: Model
    seed: int
    folder: Path

    @classmethod
    def at(cls, folder: Path, torch: Torch, model: Model, seed: int) -> StoredWeights:
        return cls(torch, model, seed, folder.absolute())

    def unpack(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Reads the weights, merges adapters in, and yields each tensor by its name."""
        from sojourn.backends.torch.models import export, lora

        loaded = self.torch.load(self.model, self.seed)
        return lora.merged(export.with_weights(loaded.model, self.model.lora, self.folder))

    def packed(self) -> PackedWeights:
        """Reads the weights, and returns them packed, in the type in which samplers compute."""
        from sojourn.backends.ray.packed_weights import pack
        from sojourn.backends.torch.backend import compute_dtype, device_of

        here = replace(self, torch=replace(self.torch, device="cpu"))
        return pack(here.unpack(), compute_dtype(self.model.dtype, device_of(self.torch.device)))
