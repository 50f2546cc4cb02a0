"""Credit of one model's trajectories that depends on those of other models in the same episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sojourn.abilities import reads_all_models
from sojourn.protocols import Estimator
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.types import Credit, Group, Score, Streams

Scores = Sequence[Sequence[Score]]


def of_model(
    model: str, estimator: Estimator, groups: Sequence[Group], scores: Scores
) -> Callable[[Sequence[Group], Scores, Streams], list[list[Credit]]]:
    """Returns what computes the credit of a model's trajectories in a step that took these groups: the estimator or,
    where that reads the trajectories of all models, what gives it those of the same episodes."""
    if not reads_all_models(estimator):
        return estimator

    def credit_of(own: Sequence[Group], own_scores: Scores, streams: Streams) -> list[list[Credit]]:
        whole = [_whole(group, groups, scores) for group in own]
        credit = estimator([one.group for one in whole], [one.scores for one in whole], {})
        return [
            [mine for mine, one in zip(credits, scored.group.trajectories, strict=True) if one.model == model]
            for credits, scored in zip(credit, whole, strict=True)
        ]

    return credit_of


def _whole(kept: Group, groups: Sequence[Group], scores: Scores) -> ScoredGroup:
    """Returns the group of a step, of which the episodes of `kept` are left, with all of their trajectories."""
    left = {episode.id for episode in kept.episodes}
    for group, judged in zip(groups, scores, strict=True):
        numbers = [number for number, episode in enumerate(group.episodes) if episode.id in left]
        if numbers and group.slot == kept.slot and group.origin == kept.origin:
            return ScoredGroup(group, list(judged)).select(numbers)
    raise AssertionError("what is kept of a step is of a group that it took")
