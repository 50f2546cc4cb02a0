"""Filters choose which of a group's episodes are trained. One file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sojourn.protocols import Filter
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.types import Group, Score


class Filtered(NamedTuple):
    groups: list[Group]
    scores: list[list[Score]]


def apply_filters(filters: Sequence[Filter], groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> Filtered:
    """Applies the filters one after another; a group that loses all of its episodes is dropped."""
    kept = [ScoredGroup(group, list(group_scores)) for group, group_scores in zip(groups, scores, strict=True)]
    for choose in filters:
        filtered = [scored.select(choose(scored.group, scored.scores)) for scored in kept]
        kept = [scored for scored in filtered if scored.group.episodes]
    return Filtered([scored.group for scored in kept], [scored.scores for scored in kept])
