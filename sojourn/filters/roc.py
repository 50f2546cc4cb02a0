"""Half of a group: of what succeeded the cleanest, of what failed any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from zlib import crc32

import numpy as np

from sojourn.config.registry import SOME, Range
from sojourn.types import Episode, Group, Score


@dataclass(frozen=True, kw_only=True)
class ROC:
    """Keeps a `share` of the episodes, as many of those that succeeded as of those that failed in proportion, but at
    least one of each: of what succeeded the ones with the fewest errors, of what failed any (GRPO-RoC, resample on
    correct, of rStar2-Agent: Shang et al. 2025, arXiv:2508.20722, section 2.2).

    An episode's errors are the share of its turns in which the number `by` of `Turn.info` is above 0; the paper adds
    the answers that it wrapped wrongly. As in the authors' code the cleanest are taken and not drawn; ties, and what
    failed, by the episodes' names. What is left out is recorded and counts in the metrics, but nothing is learnt from
    it.
    """

    share: Annotated[float, Range(above=0, most=1)] = 0.5
    by: Annotated[str, SOME] = "malformed"

    def __call__(self, group: Group, scores: Sequence[Score]) -> list[int]:
        """The numbers of the episodes to be trained, in order."""
        able = [n for n, episode in enumerate(group.episodes) if episode.error is None]
        won = [n for n in able if any(t.success for t in group.episodes[n].trajectories if t.trainable)]
        lost = sorted(set(able) - set(won), key=lambda n: _drawn(group.episodes[n]))
        won.sort(key=lambda n: (self._errors(group.episodes[n]), _drawn(group.episodes[n])))
        wanted = max(round(self.share * len(able)), min(len(won), 1) + min(len(lost), 1))
        least, most = max(min(len(won), 1), wanted - len(lost)), min(len(won), wanted - min(len(lost), 1))
        count = int(np.clip(round(self.share * len(won)), least, most))
        return sorted(won[:count] + lost[: wanted - count])

    def _errors(self, episode: Episode) -> float:
        turns = [turn for t in episode.trajectories if t.trainable for turn in t.turns]
        return float(np.mean([turn.info.get(self.by, 0.0) > 0 for turn in turns])) if turns else 0.0


def _drawn(episode: Episode) -> int:
    return crc32(episode.id.encode())
