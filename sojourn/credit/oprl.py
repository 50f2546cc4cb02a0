"""An episode's advantage and that of each turn's implicit reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from sojourn.config.registry import Kind, Range
from sojourn.credit.grpo import GRPO
from sojourn.credit.relative import Values, centred, split_turns, seats_of_turns, standardised, per_label
from sojourn.credit.wrapped import Wrapped, scale_turns
from sojourn.types import Credit, FloatArray, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class OPRL(Wrapped):
    """Another estimator's advantage, of the episode, plus `strength` times the implicit reward of each turn,
    standardised over all turns of the same seat in the group (OPRL: Liu et al. 2025, arXiv:2509.19199, section 3.2).

    A turn's implicit reward is that of its tokens added up. Its advantage is that reward alone: neither discounted nor
    followed by later ones, as in the paper. `by` "leave_one_out" takes the mean of the seat's other turns from it
    instead, which goes with `rloo` as the base. The paper does not tell seats apart; here turns of several are not
    compared with each other, as their implicit rewards are of other prompts.
    """

    base: Annotated[Any, Kind("estimator")] = field(default_factory=GRPO)
    step_advantage: Literal["standardised", "leave_one_out"] = "standardised"
    step_weight: float = 1.0
    epsilon: Annotated[float, Range(0)] = 1e-6

    extra_streams: ClassVar[frozenset[str]] = frozenset({"implicit_reward"})

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        found = zip(groups, self.base(groups, scores, streams), streams["implicit_reward"], strict=True)
        return [self._plus(*of) for of in found]

    def _plus(self, group: Group, credit: Sequence[Credit], known: Sequence[Sequence[FloatArray]]) -> list[Credit]:
        sums = np.array([float(turn.sum()) for turns in known for turn in turns], dtype=np.float64)
        gains = split_turns(group, self.step_weight * per_label(seats_of_turns(group), sums, self._gain))
        return [scale_turns(one, np.ones(len(gain)), gain) for one, gain in zip(credit, gains, strict=True)]

    def _gain(self, rewards: Values) -> Values:
        if self.step_advantage == "leave_one_out":
            return centred(rewards) * len(rewards) / max(len(rewards) - 1, 1)
        return standardised(rewards, self.epsilon)
