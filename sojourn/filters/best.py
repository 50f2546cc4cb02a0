"""Best of N: the episodes of a group with the highest rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from zlib import crc32

from sojourn.config.fields import Range
from sojourn.types import Group, Score


@dataclass(frozen=True, kw_only=True)
class Best:
    """Keeps the `count` episodes of a group with the highest rewards, failures among them where nothing better was
    played (the best of 16 answers in self-distillation of RISE: Qu et al. 2024, arXiv:2407.18219, by its code).

    An episode's reward is the sum over its trained seats. Among equals the authors take the first; here a hash of the
    episodes' ids decides, so that their order does not matter. Episodes that are left out are recorded and count in the
    metrics, but are not trained. A group-relative estimator has nothing to compare in a group of one: the filter is for
    imitation, by `constant` or `awr`.
    """

    count: Annotated[int, Range(1)] = 1

    def __call__(self, group: Group, scores: Sequence[Score]) -> list[int]:
        """Returns the numbers of the episodes to be trained, in order."""
        totals = dict[int, float]()
        for owner, score in zip(group.owners, scores, strict=True):
            totals[owner] = totals.get(owner, 0.0) + score.total
        ranked = sorted(totals, key=lambda n: (-totals[n], crc32(group.episodes[n].id.encode())))
        return sorted(ranked[: self.count])
