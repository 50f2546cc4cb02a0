"""An agent that always goes on from the most promising of all positions that it has seen."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

from sojourn.config.fields import Range
from sojourn.config.unused import refuse_unused
from sojourn.errors import ConfigError
from sojourn.searchers.ahead import Ahead, Position
from sojourn.searchers.tree_search import TreeSearch, refuse_values_by_likelihood
from sojourn.types import Turn


class Open(NamedTuple):
    """A position that can be expanded. The heap gives the one of the least `cost` first, of equal ones the oldest."""

    cost: float
    order: int
    position: Position
    number: int
    depth: int


@dataclass(frozen=True, kw_only=True)
class BestFirst(TreeSearch):
    """Expands, `expansions` times, the best of all positions that it has seen, and takes a turn towards the best that
    came of it (Koh et al. 2024, arXiv:2407.01476, section 3, with b = `width`, d = `depth`, c = `expansions`).

    `by` = "reward" values positions as `rollouts` says; the authors ask a model, and only when a position is expanded.
    "likelihood" is the sum of the log-probabilities of the seat's tokens since the search began, divided by their
    number to the power of `alpha` (after BFS-Prover: Xin et al. 2025, arXiv:2502.03438, by an account, which divides
    by the length of the path). A play that ended is worth its reward, and is not expanded; by likelihood, one is taken
    only where no other way goes on.

    With `merge_states`, positions of the same state, by the world's `state_key`, count as one: that which was found
    first (after the authors' code of BFS-Prover-V2: Xin et al. 2025, arXiv:2509.06493). So an action that changes
    nothing, such as one that the world answers with an error, is not gone on from. Where the source of the groups knows
    which actions lead from a state to success, a search that comes to such a state ends by them.
    """

    recalls: ClassVar[bool] = True

    expansions: Annotated[int, Range(1)] = 16
    depth: Annotated[int, Range(1)] = 8
    by: Literal["reward", "likelihood"] = "reward"
    alpha: Annotated[float, Range(0)] = 1.0
    merge_states: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by == "likelihood":
            refuse_values_by_likelihood(self)
        else:
            refuse_unused(self, ["alpha"], 'with by = "reward", which has no path to normalise')

    @property
    def env_needs(self) -> frozenset[str]:
        return frozenset({"state_key"} if self.merge_states else ())

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        waiting, ended = [Open(0.0, 0, ahead.root, -1, 0)], list[Open]()
        order, best, seen = 0, waiting[0], {ahead.root.state}
        if self.merge_states and ahead.root.state is None:
            raise ConfigError(
                f"best_first with merge_states needs a world with state_key(), which {ahead.task.env} does not have: "
                "define it, or leave merge_states out"
            )
        if end := await self.recalled(ahead, ahead.root):
            return ahead.plan(end)
        for _ in range(self.expansions):
            if not waiting or not ahead.left:
                break
            one = heapq.heappop(waiting)
            if one.cost <= best.cost or best.position is ahead.root:
                best = one
            for tried in await ahead.expand(one.position, self.width):
                order += 1
                over = tried.position.over
                rollouts = self.rollouts if self.by == "reward" else 0
                valued = await ahead.valued(tried.position, rollouts, self.critic)
                worth = valued.worths[ahead.name] if self.by == "reward" or over else self._score(ahead, tried.position)
                number = ahead.consider(tried.text, worth, 1, one.number, tried.agent)
                if self.ends_search(ahead, valued):
                    return ahead.plan(valued.best)
                if end := await self.recalled(ahead, tried.position):
                    return ahead.plan(end)
                if self.merge_states and not over and tried.position.state in seen:
                    continue
                seen.add(tried.position.state)
                found = Open(-worth, order, tried.position, number, one.depth + 1)
                if over or found.depth >= self.depth:
                    ended.append(found)
                else:
                    heapq.heappush(waiting, found)
        left = [one for one in (best, *waiting) if one.position is not ahead.root]
        towards = [*left, *ended] if self.by == "reward" else left or ended
        return ahead.plan(min(towards).position if towards else None)[:1]

    def _score(self, ahead: Ahead, position: Position) -> float:
        """Returns the log-probability of a path, normalised by its length."""
        tokens = sum(len(turn.sample.tokens) for turn in ahead.new_turns(position, ahead.root, ahead.name))
        return ahead.likelihood(position) * max(tokens, 1) ** (1 - self.alpha)
