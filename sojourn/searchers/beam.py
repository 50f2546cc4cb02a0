"""An agent that keeps the best few of the ways it could go on, turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from sojourn.config.fields import Range
from sojourn.searchers.ahead import Ahead, Position, Tried, Valued
from sojourn.searchers.tree_search import TreeSearch, refuse_values_by_likelihood
from sojourn.types import Turn


class Way(NamedTuple):
    """A way to go on: a position, its value, and the number of its last action among those considered."""

    position: Position
    value: float
    number: int


@dataclass(frozen=True, kw_only=True)
class Beam(TreeSearch):
    """Samples actions at each of `beams` positions, and keeps the best `beams` of what they lead to, for `depth` turns
    (breadth-first search of Tree of Thoughts: Yao et al. 2023, arXiv:2305.10601, by its code, where a prompt of the
    model values states).

    `by` says which are the best: those with the highest "reward", as `rollouts` has it, or with the highest
    "likelihood", the mean log-probability of the tokens since the search began. A play that ended is worth its reward.
    If one is worth `enough` it is followed; else, by reward, the best of all is, and by likelihood the best of those
    that go on, if there is one.
    """

    beams: Annotated[int, Range(1)] = 4
    depth: Annotated[int, Range(1)] = 4
    by: Literal["reward", "likelihood"] = "reward"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by == "likelihood":
            refuse_values_by_likelihood(self)

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        kept, ended = [Way(ahead.root, 0.0, -1)], list[Way]()
        for _ in range(self.depth):
            found: list[Way] = []
            for way in kept:
                for tried in await ahead.expand(way.position, self.width) if ahead.left else ():
                    valued = await self.value(ahead, tried)
                    worth = valued.worths[ahead.name]
                    if self.ends_search(ahead, valued):
                        ahead.consider(tried.text, worth, 1, way.number, tried.agent)
                        return ahead.plan(valued.best)
                    number = ahead.consider(tried.text, worth, 1, way.number, tried.agent)
                    (ended if tried.position.over else found).append(Way(tried.position, worth, number))
            if not found:
                break
            kept = sorted(found, key=lambda way: -way.value)[: self.beams]
        left = [way for way in kept if way.position is not ahead.root]
        candidates = [*left, *ended] if self.by == "reward" else left or ended
        best = max(candidates, key=lambda way: way.value, default=None)
        return ahead.plan(best.position if best is not None else None)[:1]

    async def value(self, ahead: Ahead, tried: Tried) -> Valued:
        """Returns what an action is worth."""
        if self.by == "reward" or tried.position.over:
            return await ahead.valued(tried.position, self.rollouts, self.critic)
        likelihood = ahead.likelihood(tried.position)
        return Valued({ahead.name: likelihood}, tried.position, likelihood)
