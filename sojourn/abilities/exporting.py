"""What a backend offers that writes models in formats of other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from sojourn.ability import Ability
from sojourn.protocols import RendererConfig

if TYPE_CHECKING:
    from sojourn.models.spec import Model


class ExportedModel(NamedTuple):
    """Describes a model that a backend wrote: the base, its licence (an SPDX identifier, or "unknown"), the
    architecture, the number of parameters. `library` loads it, by `use`, a program of a few lines for the folder that
    it lies in."""

    base: str
    licence: str
    architecture: str
    parameters: int
    library: str
    use: str


@runtime_checkable
class ExportsModels(Ability, Protocol):
    """A backend that writes the policy in formats of other programs.

    `model_formats` gives a sentence for each format. `export_model` writes the model with these weights of a checkpoint
    (None: those that a run begins with) into an empty folder; `dtype` is "fp32" or "bf16".
    """

    @property
    def model_formats(self) -> Mapping[str, str]: ...
    def export_model(
        self,
        model: Model,
        renderer: RendererConfig,
        seed: int,
        weights: Path | None,
        format: str,
        dtype: str,
        out: Path,
    ) -> ExportedModel: ...
