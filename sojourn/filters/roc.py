"""Resample on correct: the cleanest successes and any failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from zlib import crc32

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.types import Ending, Episode, Group, Score, Trajectory

NO_TOOL = 0.5  # the penalty for tool errors of an episode that called no tool


@dataclass(frozen=True, kw_only=True)
class ROC:
    """Keeps a `fraction` of the group's episodes, with successes and failures in proportion but at least one of each:
    the successes with the smallest penalty, and failures chosen at random (GRPO-RoC, resample on correct, of
    rStar2-Agent: Shang et al. 2025, arXiv:2508.20722, section 2.2).

    The penalty of an episode is a sum of two. For tool errors it is the fraction of erroneous turns among those that
    called a tool, and 0.5 where no turn called one: a turn called a tool if its `Turn.info` has the number `info_key`,
    and erred if that is above 0. For format it is the fraction of malformed turns, and 1 where the episode ended
    without an answer (malformed or truncated). The authors find tool errors by the word "error" in what a tool returns,
    and their format is that of answer tags: 1 without a closed one, else the fraction of turns with one too many.
    Worlds here have no answer tags, so malformed turns stand in for them. Seats that took no turn do not count.

    As in the authors' code the episodes with the smallest penalties are taken, rather than drawn by them; ties, and the
    choice of failures, are decided by a hash of the episodes' ids. The authors' scripts keep at least two of each kind.
    Episodes that are left out are recorded and count in the metrics, but are not trained.
    """

    fraction: Annotated[float, Range(above=0, max=1)] = 0.5
    info_key: Annotated[str, NONBLANK] = "error"

    def __call__(self, group: Group, scores: Sequence[Score]) -> list[int]:
        """Returns the numbers of the episodes to be trained, in order."""
        valid = [n for n, episode in enumerate(group.episodes) if episode.error is None]
        successes = [n for n in valid if any(t.success for t in group.episodes[n].trajectories if t.trainable)]
        failures = sorted(set(valid) - set(successes), key=lambda n: _hash(group.episodes[n]))
        successes.sort(key=lambda n: (self._penalty(group.episodes[n]), _hash(group.episodes[n])))
        total = max(round(self.fraction * len(valid)), min(len(successes), 1) + min(len(failures), 1))
        lower = max(min(len(successes), 1), total - len(failures))
        upper = min(len(successes), total - min(len(failures), 1))
        count = int(np.clip(round(self.fraction * len(successes)), lower, upper))
        return sorted(successes[:count] + failures[: total - count])

    def _penalty(self, episode: Episode) -> float:
        trajectories = [t for t in episode.trajectories if t.trainable and t.turns]
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        errors = [turn.info[self.info_key] > 0 for turn in turns if self.info_key in turn.info]
        tool_penalty = float(np.mean(errors)) if errors else NO_TOOL
        return tool_penalty + float(np.mean([_format_penalty(t) for t in trajectories] or [0.0]))


def _format_penalty(trajectory: Trajectory) -> float:
    if trajectory.ending is not Ending.DONE:
        return 1.0
    return float(np.mean([turn.info.get("malformed", 0.0) > 0 for turn in trajectory.turns]))


def _hash(episode: Episode) -> int:
    return crc32(episode.id.encode())
