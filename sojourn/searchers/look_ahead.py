"""An agent that tries each of some actions in copies of the play, and takes the one that went best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.fields import Range
from sojourn.searchers.ahead import Ahead, Valued
from sojourn.searchers.tree_search import TreeSearch
from sojourn.types import Turn


@dataclass(frozen=True, kw_only=True)
class LookAhead(TreeSearch):
    """Plays on `rollouts` times after each of some actions, and takes the one with the highest mean reward (rollouts of
    a policy by Monte Carlo: Tesauro and Galperin 1996, "On-line Policy Improvement using Monte-Carlo Search").

    Plays go on for `turns` turns, the tried one included (0: to the end), and count with the reward that they have by
    then. Of equal actions the one that was sampled more often is taken.
    """

    turns: Annotated[int, Range(0)] = 0

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        tried = await ahead.expand(ahead.root, self.width)
        means: list[float] = []
        for one in tried:
            ends = [one.position]
            if not one.position.over and self.turns != 1:
                more = self.turns - 1 if self.turns else None
                ends = await ahead.play_all(one.position, self.rollouts, more) or ends
            worths = [(await ahead.worth(end))[ahead.name] for end in ends]
            means.append(float(np.mean(worths)))
            ahead.consider(one.text, means[-1], len(worths))
            best = int(np.argmax(worths))
            if self.ends_search(ahead, Valued({ahead.name: means[-1]}, ends[best], worths[best])):
                return ahead.plan(ends[best])
            if not ahead.left:
                break
        return ahead.plan(tried[int(np.argmax(means))].position)[:1] if means else []
