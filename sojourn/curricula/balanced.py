"""Every world, or every tag, takes the same share of the draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sojourn.config.fields import NONBLANK
from sojourn.curricula.by_label import OverBase, members, shared
from sojourn.curricula.task_history import Array, TaskHistory


@dataclass(frozen=True, kw_only=True)
class Balanced(OverBase):
    """Gives every world the same share of the draws (`by = "world"`), or every tag ("tag"), or every value of a key of
    the tasks' data (the name of the key); the tasks of each share it as `base` weighs them.

    The split, the pool and the uniform fraction are those of `base`, a curriculum that weighs tasks.
    """

    by: Annotated[str, NONBLANK] = "world"

    def weights(self, history: TaskHistory) -> Array:
        groups = members(history, self.by)
        return shared(history, self.base, groups, [1 / len(groups)] * len(groups))
