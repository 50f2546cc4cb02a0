"""Filters: which of a group's episodes are trained. One file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sojourn.protocols import Filter
from sojourn.rewards.reward_cache import Judged
from sojourn.types import Group, Score


class Sifted(NamedTuple):
    groups: list[Group]
    scores: list[list[Score]]


def sift(filters: Sequence[Filter], groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> Sifted:
    """What the filters, one after another, leave to be trained; a group of which nothing is left is none."""
    left = [Judged(group, list(judged)) for group, judged in zip(groups, scores, strict=True)]
    for one in filters:
        sifted = [judged.only(one(judged.group, judged.scores)) for judged in left]
        left = [judged for judged in sifted if judged.group.episodes]
    return Sifted([judged.group for judged in left], [judged.scores for judged in left])
