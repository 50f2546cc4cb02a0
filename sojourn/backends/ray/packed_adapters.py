"""Carries adapters to samplers, which hold them over the base of the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sojourn.backends.ray.packed_weights import PackedWeights
from sojourn.models.spec import Lora

if TYPE_CHECKING:
    from sojourn.backends.torch.models.adapters import Adapter


@dataclass(frozen=True)
class PackedAdapter:
    """Holds the tensors of an adapter, in the type in which they are trained."""

    weights: PackedWeights
    lora: Lora

    def unpack(self) -> Adapter:
        from sojourn.backends.torch.models.adapters import adapter_of

        return adapter_of(self.weights.unpack(), self.lora)


class NamedAdapter(NamedTuple):
    """Names an adapter in requests. A sampler that does not have it, such as one that was started anew, fetches it."""

    name: str
    packed: Any  # reference to its `PackedAdapter` in Ray's object store
