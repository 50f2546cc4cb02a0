"""Tasks of the kinds that evaluations show to be weak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from sojourn.config.fields import Range
from sojourn.curricula.by_label import OverBase, members, shared
from sojourn.curricula.task_history import Array, TaskHistory
from sojourn.curricula.weighted import normalised


@dataclass(frozen=True, kw_only=True)
class Deficits(OverBase):
    """Shares the draws between tags (`by = "tag"`) or worlds ("world") by how much each fails in the newest
    evaluation: the share is in proportion to the failure rate to the `power`, plus `floor`. Tags that the evaluation
    does not have count as failing half of the time, and all alike before the first.

    It is the part of TRACE (Kang et al. 2026, arXiv:2604.05336) that targets a policy's capability deficits. There a
    language model names the capabilities that failed episodes lack, and makes tasks for each; here the capabilities
    are the tags that a world gives. The tasks of a tag share its draws as `base` weighs them; the split, the pool and
    the uniform fraction are those of `base`.
    """

    unverified: ClassVar[str] = "the paper's abstract and its authors' page were read, not its text"

    by: Literal["tag", "world"] = "tag"
    power: Annotated[float, Range(above=0)] = 1.0
    floor: Annotated[float, Range(0)] = 0.05

    def weights(self, history: TaskHistory) -> Array:
        groups = members(history, self.by)
        rates = [successes / episodes for episodes, successes in (history.tests.get(g, (2, 1)) for g in groups)]
        shares = normalised((1 - np.array(rates)) ** self.power + self.floor)
        return shared(history, self.base, groups, shares.tolist())
