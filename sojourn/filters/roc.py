"""Half of a group: of what succeeded the cleanest, of what failed any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from zlib import crc32

import numpy as np

from sojourn.config.registry import SOME, Range
from sojourn.types import Ending, Episode, Group, Score, Trajectory

NO_TOOL = 0.5  # the penalty for tool errors of an episode that called no tool


@dataclass(frozen=True, kw_only=True)
class ROC:
    """Keeps a `share` of the episodes, as many of those that succeeded as of those that failed in proportion, but at
    least one of each: of what succeeded the ones with the smallest penalty, of what failed any (GRPO-RoC, resample
    on correct, of rStar2-Agent: Shang et al. 2025, arXiv:2508.20722, section 2.2).

    The penalty of an episode is a sum of two. For tool errors it is the share of the turns that called a tool (which
    are those with the number `by` in `Turn.info`) where that number is above 0, and 0.5 where no turn called one. For
    format it is the share of turns that were malformed, and 1 where the episode ended without an answer (malformed or
    truncated). The authors find tool errors by the word "error" in what a tool returns, and their format is that of
    answer tags: 1 without a closed one, else the share of turns with one too many. Worlds here have no answer tags, so
    a malformed turn stands in for it.

    As in the authors' code the episodes with the smallest penalties are taken, rather than drawn by them; ties, and
    what failed, by the episodes' names. The authors' scripts keep at least two of each kind. What is left out is
    recorded and counts in the metrics, but nothing is learnt from it.
    """

    share: Annotated[float, Range(above=0, max=1)] = 0.5
    by: Annotated[str, SOME] = "error"

    def __call__(self, group: Group, scores: Sequence[Score]) -> list[int]:
        """The numbers of the episodes to be trained, in order."""
        able = [n for n, episode in enumerate(group.episodes) if episode.error is None]
        won = [n for n in able if any(t.success for t in group.episodes[n].trajectories if t.trainable)]
        lost = sorted(set(able) - set(won), key=lambda n: _drawn(group.episodes[n]))
        won.sort(key=lambda n: (self._penalty(group.episodes[n]), _drawn(group.episodes[n])))
        wanted = max(round(self.share * len(able)), min(len(won), 1) + min(len(lost), 1))
        least, most = max(min(len(won), 1), wanted - len(lost)), min(len(won), wanted - min(len(lost), 1))
        count = int(np.clip(round(self.share * len(won)), least, most))
        return sorted(won[:count] + lost[: wanted - count])

    def _penalty(self, episode: Episode) -> float:
        played = [t for t in episode.trajectories if t.trainable]
        failed = [turn.info[self.by] > 0 for t in played for turn in t.turns if self.by in turn.info]
        return (float(np.mean(failed)) if failed else NO_TOOL) + float(np.mean([_unformed(t) for t in played]))


def _unformed(trajectory: Trajectory) -> float:
    if trajectory.ending is not Ending.DONE:
        return 1.0
    return float(np.mean([turn.info.get("malformed", 0.0) > 0 for turn in trajectory.turns]))


def _drawn(episode: Episode) -> int:
    return crc32(episode.id.encode())
