"""Episode advantages plus step advantages from implicit rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from sojourn.config.fields import Kind, Range
from sojourn.config.unused import refuse_unused
from sojourn.credit.by_turn import seats_of_turns, split_turns
from sojourn.credit.grpo import GRPO
from sojourn.credit.relative import Values, centred, per_label, standardised
from sojourn.credit.wrapped import Wrapped, scale_turns
from sojourn.protocols import Estimator
from sojourn.types import Credit, FloatArray, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class OPRL(Wrapped):
    """Another estimator's advantage (the episode's) plus `step_weight` times the implicit reward of each turn,
    standardised over all turns of the same seat in the group (OPRL: Liu et al. 2025, arXiv:2509.19199, section 3.2).

    The implicit reward of a turn is the sum of its tokens' rewards in the stream `implicit_reward`. The step advantage
    is of that reward alone: as in the paper it is neither discounted nor does it include later rewards.
    `step_advantage = "leave_one_out"` subtracts the mean of the seat's other turns instead of standardising, which goes
    with `rloo` as the base. The paper does not tell seats apart; here turns of different seats are not compared, as
    their implicit rewards are for other prompts.
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=GRPO)
    step_advantage: Literal["standardised", "leave_one_out"] = "standardised"
    step_weight: float = 1.0
    epsilon: Annotated[float, Range(0)] = 1e-6

    extra_streams = frozenset({"implicit_reward"})

    def __post_init__(self) -> None:
        if self.step_advantage == "leave_one_out":
            refuse_unused(self, ["epsilon"], 'with step_advantage = "leave_one_out", which divides by no deviation')

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        episode = self.base(groups, scores, streams)
        columns = zip(groups, episode, streams["implicit_reward"], strict=True)
        return [self._with_step_advantages(*arguments) for arguments in columns]

    def _with_step_advantages(
        self, group: Group, credits: Sequence[Credit], rewards: Sequence[Sequence[FloatArray]]
    ) -> list[Credit]:
        sums = np.array([float(turn.sum()) for turns in rewards for turn in turns], dtype=np.float64)
        step = split_turns(group, self.step_weight * per_label(seats_of_turns(group), sums, self._normalise))
        return [scale_turns(c, np.ones(len(s)), s) for c, s in zip(credits, step, strict=True)]

    def _normalise(self, rewards: Values) -> Values:
        if self.step_advantage == "leave_one_out":
            return centred(rewards) * len(rewards) / max(len(rewards) - 1, 1)
        return standardised(rewards, self.epsilon)
