"""Credit of one model's trajectories that depends on those of other models in the same episodes."""

from __future__ import annotations

from collections.abc import Sequence

from sojourn.protocols import Estimator
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.types import Credit, Group, Score


def credit_among_models(
    model: str,
    estimator: Estimator,
    kept: Sequence[Group],
    groups: Sequence[Group],
    scores: Sequence[Sequence[Score]],
) -> list[list[Credit]]:
    """Returns the credit of a model's trajectories in the groups `kept`, computed among those of all models that learn
    in the same episodes; `groups` are those that a step took, whole, with their scores."""
    whole = [_whole(group, groups, scores) for group in kept]
    credit = estimator([one.group for one in whole], [one.scores for one in whole], {})
    return [
        [own for own, trajectory in zip(credits, one.group.trajectories, strict=True) if trajectory.model == model]
        for credits, one in zip(credit, whole, strict=True)
    ]


def _whole(kept: Group, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> ScoredGroup:
    """Returns the group of a step, of which the episodes of `kept` are left, with all of their trajectories."""
    left = {episode.id for episode in kept.episodes}
    for group, judged in zip(groups, scores, strict=True):
        numbers = [number for number, episode in enumerate(group.episodes) if episode.id in left]
        if numbers and group.slot == kept.slot and group.origin == kept.origin:
            return ScoredGroup(group, list(judged)).select(numbers)
    raise AssertionError("what is kept of a step is of a group that it took")
