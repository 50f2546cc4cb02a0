"""Episode-level plus step-level group-relative advantages."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Annotated

import numpy as np

from sojourn.config.fields import Range
from sojourn.config.unused import refuse_unused
from sojourn.credit.by_turn import concatenated, credit_turns, returns_to_go, seats_of_turns
from sojourn.credit.relative import (
    GroupEstimator,
    Normalise,
    centred,
    per_label,
    seats,
    standardised,
    trajectory_returns,
)
from sojourn.types import Credit, Group, Score, Turn


@dataclass(frozen=True, kw_only=True)
class GiGPO(GroupEstimator):
    """Episode advantage, relative to the group, plus `step_weight` times the step advantage of each turn, relative to
    the group's turns in the same state (Feng et al. 2025, arXiv:2505.10978, eq. 3, 6-8).

    The step advantage compares discounted returns-to-go. The anchor states are those of `Env.state_key`. With
    `similarity` below 1, turns whose observations have at least this similarity (the ratio of Ratcliff and Obershelp)
    count as the same state; so do turns that are connected by a chain of such turns, so that their order does not
    matter. To compare all observations of a group takes time that grows with the square of their number and of their
    lengths: some 8 s for 40 of 430 characters. Standard deviations are the population's (in the authors' code, the
    sample's); `scale_by_std = false` only subtracts means in both advantages. A state that occurs once adds nothing,
    nor does one that is not known, as of imported turns.
    """

    step_weight: float = 1.0
    discount: Annotated[float, Range(0, 1)] = 0.95
    scale_by_std: bool = True
    similarity: Annotated[float, Range(above=0, max=1)] = 1.0
    epsilon: Annotated[float, Range(0)] = 1e-6

    def __post_init__(self) -> None:
        if not self.scale_by_std:
            refuse_unused(self, ["epsilon"], "with scale_by_std = false")

    @property
    def env_needs(self) -> frozenset[str]:
        return frozenset({"state_key"}) if self.similarity == 1 else frozenset()

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        normalise: Normalise = partial(standardised, epsilon=self.epsilon) if self.scale_by_std else centred
        episode = per_label(seats(group), trajectory_returns(scores), normalise)
        turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
        returns = concatenated(returns_to_go(score, self.discount) for score in scores)
        step = per_label(self._states(group, turns), returns, normalise)
        episode_of_turns = np.repeat(episode, [len(trajectory.turns) for trajectory in group.trajectories])
        return credit_turns(group, episode_of_turns + self.step_weight * step)

    def _states(self, group: Group, turns: Sequence[Turn]) -> list[Hashable]:
        states: Sequence[Hashable] = (
            [n if turn.state is None else turn.state for n, turn in enumerate(turns)]
            if self.similarity == 1
            else similar_observations(turns, self.similarity)
        )
        return list(zip(seats_of_turns(group), states, strict=True))


def similar_observations(turns: Sequence[Turn], threshold: float) -> list[int]:
    """Numbers the turns such that two have the same number if their observations are similar, directly or by a chain
    of observations between them."""
    texts = ["\n".join(message.text for message in turn.observed) for turn in turns]
    distinct = sorted(set(texts))
    number = {text: n for n, text in enumerate(distinct)}
    for n, text in enumerate(distinct):
        matcher = SequenceMatcher(None, b=text, autojunk=False)  # prepares `text` once for all comparisons
        for other in distinct[:n]:
            if number[other] != number[text] and _is_similar(matcher, other, threshold):
                number |= {t: number[other] for t, m in number.items() if m == number[text]}
    return [number[text] for text in texts]


def _is_similar(matcher: SequenceMatcher[str], other: str, threshold: float) -> bool:
    matcher.set_seq1(other)
    ratios = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)  # the first two are cheap upper bounds
    return all(ratio() >= threshold for ratio in ratios)
