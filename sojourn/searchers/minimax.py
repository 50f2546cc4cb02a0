"""An agent that searches a game of two seats as if the other one chose what is worst for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.config.fields import Range
from sojourn.searchers.ahead import Ahead, Position
from sojourn.searchers.search import JudgedSearch
from sojourn.types import Turn


@dataclass(frozen=True, kw_only=True)
class Minimax(JudgedSearch):
    """Looks `depth` turns ahead, where the seat takes what is worth most to it and the others what is worth least, with
    alpha-beta pruning (Knuth and Moore 1975), over actions that the policy samples for each side, as PokéChamp has a
    language model propose both sides' actions (Karten et al. 2025, arXiv:2503.04094, by its code).

    With `listed`, all actions are searched that the world lists as possible, where it lists them, and nothing is
    sampled for them; else `width` actions are sampled at a position. At the depth, a position is worth the mean reward
    of `rollouts` plays from there to the end (0: the reward so far), where the authors ask the model. For games of two
    seats whose rewards add up to a constant; a lone seat takes the best at every turn.
    """

    width: Annotated[int, Range(1)] = 4
    depth: Annotated[int, Range(1)] = 2
    rollouts: Annotated[int, Range(0)] = 1
    listed: bool = True

    @property
    def unsampled(self) -> bool:
        return self.listed

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        _, best = await self._best(ahead, ahead.root, self.depth, -math.inf, math.inf, -1)
        return ahead.plan(best)[:1]

    async def _best(
        self, ahead: Ahead, position: Position, depth: int, low: float, high: float, parent: int
    ) -> tuple[float, Position | None]:
        """Returns the value of a position and, where it was searched, the position after the best action. Values of at
        most `low` or at least `high` change nothing, so that they may be bounds only."""
        if position.over or not depth or (not ahead.left and position is not ahead.root):
            return (await ahead.valued(position, self.rollouts)).worths[ahead.name], None
        own = position.actor == ahead.name
        value, best = -math.inf if own else math.inf, None
        for tried in await ahead.expand(position, self.width, listed=self.listed):
            number = ahead.consider(tried.text, math.nan, 0, parent, tried.agent)
            found, _ = await self._best(ahead, tried.position, depth - 1, low, high, number)
            ahead.note(number, found)
            if best is None or (found > value if own else found < value):
                value, best = found, tried.position
            low, high = (max(low, value), high) if own else (low, min(high, value))
            if low >= high:
                break
        if best is None:  # all copies failed
            return (await ahead.worth(position))[ahead.name], None
        return value, best
