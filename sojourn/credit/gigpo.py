"""Groups within groups: turns that were taken in the same state."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Annotated

import numpy as np

from sojourn.config.registry import Range
from sojourn.credit.relative import (
    ByGroup,
    Gain,
    centred,
    joined,
    returns,
    seats,
    seats_of_turns,
    spread_turns,
    standardised,
    totals,
    within,
)
from sojourn.types import Credit, Group, Score, Turn


@dataclass(frozen=True, kw_only=True)
class GiGPO(ByGroup):
    """The episode's advantage plus `step_weight` times that of each turn among the turns of the group that were taken
    in the same state (Feng et al. 2025, arXiv:2505.10978, eq. 3, 6-8).

    A turn's worth is its discounted return; states are those of `Env.state_key`. With `similarity` below 1, turns whose
    observations are that much alike (the ratio of Ratcliff and Obershelp) stand for one state, and so do those that a
    chain of such turns joins, so that their order does not matter. Deviations are the population's (in the authors'
    code, the sample's); `deviation = false` leaves both advantages unscaled. A state that was met once adds nothing.
    """

    step_weight: float = 1.0
    discount: Annotated[float, Range(0, 1)] = 0.95
    deviation: bool = True
    similarity: Annotated[float, Range(above=0, max=1)] = 1.0
    epsilon: Annotated[float, Range(0)] = 1e-6

    @property
    def env_needs(self) -> frozenset[str]:
        return frozenset({"state_key"}) if self.similarity == 1 else frozenset()

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        gain: Gain = partial(standardised, epsilon=self.epsilon) if self.deviation else centred
        episode = within(seats(group), totals(judged), gain)
        turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
        step = within(self._states(group, turns), joined(returns(score, self.discount) for score in judged), gain)
        whole = np.repeat(episode, [len(trajectory.turns) for trajectory in group.trajectories])
        return spread_turns(group, whole + self.step_weight * step)

    def _states(self, group: Group, turns: Sequence[Turn]) -> list[Hashable]:
        states = [turn.state for turn in turns] if self.similarity == 1 else alike(turns, self.similarity)
        return list(zip(seats_of_turns(group), states, strict=True))


def alike(turns: Sequence[Turn], least: float) -> list[int]:
    """A number for each turn: the same for two whose observations are alike, also by others between them."""
    texts = ["\n".join(message.text for message in turn.observed) for turn in turns]
    different = sorted(set(texts))
    number = {text: n for n, text in enumerate(different)}
    for n, text in enumerate(different):
        matcher = SequenceMatcher(None, b=text, autojunk=False)  # which it prepares once for all that are compared
        for other in different[:n]:
            if number[other] != number[text] and _as_like(matcher, other, least):
                number |= {t: number[other] for t, m in number.items() if m == number[text]}
    return [number[text] for text in texts]


def _as_like(matcher: SequenceMatcher[str], other: str, least: float) -> bool:
    matcher.set_seq1(other)
    bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)  # the first two, at little cost, from above
    return all(bound() >= least for bound in bounds)
