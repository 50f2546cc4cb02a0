"""The config of the optimiser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from sojourn.config.fields import Kind, Range
from sojourn.schedules import Constant, Schedule

Beta = Annotated[float, Range(0, below=1)]


@dataclass(frozen=True, kw_only=True)
class Optim:
    """AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101), gradients clipped to a global norm."""

    lr: Annotated[float, Range(0)] = 1e-5
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    weight_decay: Annotated[float, Range(0)] = 0.0
    clip_norm: Annotated[float, Range(above=0)] = 1.0
    schedule: Annotated[Schedule, Kind("schedule")] = field(default_factory=Constant)
