"""What agents that search trees of actions have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sojourn.config.fields import Range
from sojourn.config.unused import refuse_unused
from sojourn.searchers.ahead import Ahead, Position, Valued
from sojourn.searchers.search import JudgedSearch


@dataclass(frozen=True, kw_only=True)
class TreeSearch(JudgedSearch):
    """Base of agents that search trees of actions.

    `width` actions are sampled at a position, of which equal ones count as one. A position is worth the mean reward of
    `rollouts` plays from there to the end (0: the reward so far). A play of a lone seat that is over and worth at least
    `enough` ends the search, and is followed to its end.

    With `critic`, the run's critic has that weight in what a position is worth, as the value network has in AlphaGo
    (Silver et al. 2016, doi:10.1038/nature16961: (1 - w) * rollouts + w * critic): the rewards so far and what it
    expects from there on. With `critic` = 1 nothing is played to its end, and `rollouts` must be 0.
    """

    recalls: ClassVar[bool] = False  # whether it goes by what is known of earlier plays

    width: Annotated[int, Range(1)] = 4
    rollouts: Annotated[int, Range(0)] = 1
    enough: float = 1.0
    critic: Annotated[float, Range(0, 1)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_critic()

    def _check_critic(self) -> None:
        """Refuses a weight of the critic that has no effect with the other keys."""
        if self.critic and (self.critic == 1) != (self.rollouts == 0):
            remedy = "0, as nothing is played to its end" if self.rollouts else "1 or more, or critic = 1"
            raise ValueError(f"critic = {self.critic:g} with rollouts = {self.rollouts}: expected rollouts of {remedy}")

    @property
    def asks_critic(self) -> bool:
        return self.critic > 0

    def ends_search(self, ahead: Ahead, valued: Valued) -> bool:
        """Returns whether a play was found that need not be searched on."""
        return valued.best.over and valued.best_worth >= self.enough and len(ahead.contexts) == 1

    async def recalled(self, ahead: Ahead, position: Position) -> Position | None:
        """Returns the end of the play that is known to lead from a position to success, if it does so here, too."""
        end = await ahead.recall(position) if len(ahead.contexts) == 1 else None
        return end if end is not None and self.ends_search(ahead, await ahead.valued(end, 0)) else None


def refuse_values_by_likelihood(search: TreeSearch) -> None:
    """Raises `ValueError` for a search by likelihood that asks the critic, or says how often plays are to go on."""
    if search.critic:
        raise ValueError(
            f'critic = {search.critic:g} with by = "likelihood", which values no position: expected by = "reward"'
        )
    refuse_unused(search, ["rollouts"], 'with by = "likelihood", which plays nothing on')
