"""An agent that tries each of some actions in copies of the play, and takes the one that went best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.fields import Range
from sojourn.config.unused import refuse_unused
from sojourn.searchers.ahead import Ahead, Position, Valued
from sojourn.searchers.tree_search import TreeSearch
from sojourn.types import Turn


@dataclass(frozen=True, kw_only=True)
class LookAhead(TreeSearch):
    """Plays on `rollouts` times after each of some actions, and takes the one with the highest mean reward (rollouts of
    a policy by Monte Carlo: Tesauro and Galperin 1996, "On-line Policy Improvement using Monte-Carlo Search").

    Plays go on for `turns` turns, the tried one included (0: to the end), and count with the reward that they have by
    then. With `critic` = 1, those that are not over count with what the critic expects, too; so with `turns` = 1
    actions are chosen by their Q values, as step-level Q-value models choose them (Zhai et al. 2024, arXiv:2409.09345,
    by accounts: there a model of its own, trained by preferences, scores an action; here the critic values what the
    action led to). Of equal actions the one that was sampled more often is taken.
    """

    turns: Annotated[int, Range(0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.turns == 1:
            refuse_unused(self, ["rollouts"], "with turns = 1, which plays nothing on")

    def _check_critic(self) -> None:
        if self.critic not in (0, 1):
            raise ValueError(f"critic = {self.critic:g}: expected 1, for plays that are not over, or 0")
        if self.critic and not self.turns:
            raise ValueError("critic = 1 with turns = 0, where all plays are over: expected turns of at least 1")

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        tried = await ahead.expand(ahead.root, self.width)
        means: list[float] = []
        for one in tried:
            ends = [one.position]
            if not one.position.over and self.turns != 1:
                more = self.turns - 1 if self.turns else None
                ends = await ahead.play_all(one.position, self.rollouts, more) or ends
            worths = [await self._worth(ahead, end) for end in ends]
            means.append(float(np.mean(worths)))
            ahead.consider(one.text, means[-1], len(worths))
            best = int(np.argmax(worths))
            if self.ends_search(ahead, Valued({ahead.name: means[-1]}, ends[best], worths[best])):
                return ahead.plan(ends[best])
            if not ahead.left:
                break
        return ahead.plan(tried[int(np.argmax(means))].position)[:1] if means else []

    async def _worth(self, ahead: Ahead, end: Position) -> float:
        """Returns what a play is worth that went on after an action."""
        asks = self.critic and not end.over
        return await ahead.expected(end) if asks else (await ahead.worth(end))[ahead.name]
