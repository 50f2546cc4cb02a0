"""Advantages of plays within their tree and among all trees of the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from sojourn.config.fields import Range
from sojourn.credit.relative import (
    GroupEstimator,
    credit_trajectories,
    per_label,
    seats,
    standardised,
    trajectory_returns,
)
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class TreeGRPO(GroupEstimator):
    """The sum of two group-relative advantages of a play: its return standardised among the plays of the same tree, and
    among those of all trees of the task (Tree-GRPO: Ji et al. 2025, arXiv:2509.21240, section 3.3, "intra-tree" and
    "inter-tree").

    A tree is a play from the start with all that branched off. One without branches has no advantage within its tree.
    All tokens of a play have its advantage, so that a turn which several share has the mean of theirs. Deviations are
    the population's, as in `grpo`; in the authors' code they are the sample's, and a play that is alone in its tree has
    its whole return as the advantage within it.
    """

    epsilon: Annotated[float, Range(0)] = 1e-6

    group_relative = True

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        returns, names, roots = trajectory_returns(scores), seats(group), _roots(group)
        normalise = partial(standardised, epsilon=self.epsilon)
        within = per_label(zip(names, roots, strict=True), returns, normalise)
        return credit_trajectories(group, within + per_label(names, returns, normalise))


def _roots(group: Group) -> list[str]:
    """Returns, for each trajectory, the id of a play that stands for its tree. Where a filter took out the play that it
    left, its tree is that of the plays with which it shares its first turn."""
    left = {episode.id: episode.branch.of for episode in group.episodes if episode.branch is not None}

    def root(play: str) -> str:
        while play in left:
            play = left[play]
        return play

    plays = [(group.episodes[at], t) for at, t in zip(group.owners, group.trajectories, strict=True)]
    branched = {id(t.turns[0].sample) for episode, t in plays if episode.branch is not None and t.turns}
    first = dict[int, str]()  # by the first sample, one of the plays that share it
    for episode, trajectory in plays:
        sample = id(trajectory.turns[0].sample) if trajectory.turns else None
        if sample in branched:
            one, other = root(episode.id), root(first.setdefault(sample, episode.id))
            if one != other:
                left[one] = other
    return [root(episode.id) for episode, _ in plays]
