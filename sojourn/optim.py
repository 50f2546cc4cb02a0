"""The config of the optimiser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from sojourn.config.fields import Kind, Range
from sojourn.schedules import Constant, Schedule

Beta = Annotated[float, Range(0, below=1)]


@dataclass(frozen=True, kw_only=True)
class Lookahead:
    """An outer step on the weights after each cycle of `every` updates: the weights w that the cycle began with, the
    slow weights, and those v that it ended with, the fast weights, both become w + `fraction` (v - w) (Lookahead: Zhang
    et al. 2019, arXiv:1907.08610, by its authors' code; Reptile: Nichol et al. 2018, arXiv:1803.02999, by its authors'
    code, where each cycle is on the data of another task).

    Adam's averages go on over the outer step, as by default in both codes; Reptile's Adam has none of the gradient,
    which is betas = [0, 0.95]. With `fraction = 1` the weights are those of the optimiser alone. Between two outer
    steps the policy has its fast weights, which the next update begins with, so that samplers are always given what is
    trained. A cycle that a stage's end cuts short has no outer step. A second copy of the trained weights takes memory.
    """

    every: Annotated[int, Range(2)] = 5
    fraction: Annotated[float, Range(above=0, max=1)] = 0.5


@dataclass(frozen=True, kw_only=True)
class Optim:
    """AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101), gradients clipped to a global norm."""

    lr: Annotated[float, Range(0)] = 1e-5
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    weight_decay: Annotated[float, Range(0)] = 0.0
    clip_norm: Annotated[float, Range(above=0)] = 1.0
    schedule: Annotated[Schedule, Kind("schedule")] = field(default_factory=Constant)
    lookahead: Lookahead | None = None
