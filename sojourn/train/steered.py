"""Vectors that steer a model: their files, and the config that adds one while the policy samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from sojourn.activation_steering import Steering
from sojourn.config.fields import NONBLANK
from sojourn.errors import ConfigError
from sojourn.record.atomic import write_file
from sojourn.types import FloatArray

VECTOR = "vector"  # the tensor of a file


class SteeringVector(NamedTuple):
    """A direction (H,) of the residual stream after a layer (0: the first) of a model, by the model's name, and the
    method that found it."""

    vector: FloatArray
    layer: int
    model: str
    method: str

    def save(self, path: Path) -> None:
        """Writes the vector as safetensors, with the rest as metadata."""
        facts = {"layer": str(self.layer), "model": self.model, "method": self.method}
        write_file(path, lambda to: save_file({VECTOR: self.vector.astype(np.float32)}, to, facts))

    @classmethod
    def load(cls, path: Path) -> SteeringVector:
        try:
            with safe_open(path, "np") as file:
                facts = file.metadata() or {}
                return cls(file.get_tensor(VECTOR), int(facts["layer"]), facts["model"], facts.get("method", ""))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise ConfigError(
                f"'{path}' is not read as a steering vector ({error}): expected a file that `sojourn steer` wrote"
            ) from error


@dataclass(frozen=True, kw_only=True)
class SteeredBy:
    """Steers the policy: adds `beta` times the vector in `file`, which `sojourn steer` writes, to the residual stream
    after the vector's layer, at the positions whose output draws a token. A negative `beta` steers the other way."""

    file: Annotated[str, NONBLANK]
    beta: float = 1.0

    def steering(self) -> Steering:
        """Reads the file. Raises `ConfigError` where it is none of `sojourn steer`."""
        found = SteeringVector.load(Path(self.file))
        return Steering(found.layer, (np.float32(self.beta) * found.vector.astype(np.float32)).tobytes())

    def check(self, model: str, key: str) -> None:
        """Refuses a vector of another model; `key` is where the config has it."""
        found = SteeringVector.load(Path(self.file))
        if found.model != model:
            raise ConfigError(
                f"{key}.file = '{self.file}' is a vector of the model '{found.model}', but the policy is '{model}': "
                "make one from a run of this model"
            )
