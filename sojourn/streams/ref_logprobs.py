"""The reference policy's logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sojourn.batch.flatten import flatten, scatter
from sojourn.protocols import Trainer
from sojourn.types import FloatArray, Group


@dataclass(frozen=True, kw_only=True)
class RefLogprobs:
    """Log-probability of every sampled token under the weights that the stage began with."""

    provides: ClassVar[str] = "ref_logprobs"

    async def __call__(self, groups: Sequence[Group], trainer: Trainer) -> list[list[tuple[FloatArray, ...]]]:
        batch, places = flatten(groups)
        logprobs = np.asarray(await trainer.forward(batch, reference=True), dtype=np.float32)  # (N,)
        return scatter(groups, logprobs, places)
