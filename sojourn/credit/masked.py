"""Masks: which seats, turns and tokens an estimator's credit is for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np

from sojourn.config.fields import NONBLANK, Kind
from sojourn.config.unused import refuse_unused
from sojourn.credit.constant import Constant
from sojourn.credit.score_parts import compared
from sojourn.credit.wrapped import Wrapped
from sojourn.errors import ConfigError
from sojourn.protocols import Estimator
from sojourn.types import Credit, FloatArray, Group, Score, Streams, Trajectory


@dataclass(frozen=True, kw_only=True)
class Masked(Wrapped):
    """Another estimator's advantages, and 0 for what is masked: seats, turns, turns or tokens by a stream, or
    trajectories by a judge. What is masked stays in the context.

    Where `seats` are named, the others are masked. A turn was wrong if any of the numbers `exclude` in its `Turn.info`
    is above 0: with `malformed`, and what the world says of errors, the model learns to go on after a mistake, and does
    not learn the mistake (partial masking, as STeP has it for steps that a teacher found wrong). `turns` keeps all
    turns, or the first or last one of each trajectory; `stream` the tokens whose number in that stream is above
    `stream_above` and below `stream_below`, or, with `stream_by` = "turn", the turns whose mean is; `part` the
    trajectories whose part of the reward of that name, such as what a judge said, is above `part_above`. Tokens that
    are masked still count in the mean of the loss. Use it with losses that are 0 without advantage, such as `nll` or
    `ppo`.
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=Constant)
    seats: tuple[Annotated[str, NONBLANK], ...] = ()
    exclude: tuple[Annotated[str, NONBLANK], ...] = ("malformed",)
    turns: Literal["all", "first", "last"] = "all"
    stream: str = ""
    stream_above: float = 0.0
    stream_below: float = math.inf
    stream_by: Literal["token", "turn"] = "token"
    part: str = ""
    part_above: float = 0.0

    def __post_init__(self) -> None:
        if not self.stream:
            refuse_unused(self, ["stream_above", "stream_below", "stream_by"], "without a stream to compare with it")
        if not self.part:
            refuse_unused(self, ["part_above"], "without a part of the reward to compare with it")

    @property
    def needs(self) -> frozenset[str]:
        return self.base.needs | ({self.stream} if self.stream else frozenset())

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        self._require_seats(groups)
        given, judged = self.base(groups, scores, streams), compared(scores, self.part)
        return [
            [
                self._masked(
                    trajectory,
                    credit,
                    (not self.seats or trajectory.agent in self.seats)
                    and (not self.part or judged[g][t] > self.part_above),
                    streams[self.stream][g][t] if self.stream else None,
                )
                for t, (trajectory, credit) in enumerate(zip(group.trajectories, given[g], strict=True))
            ]
            for g, group in enumerate(groups)
        ]

    def _masked(
        self, trajectory: Trajectory, credit: Credit, kept: bool, stream: Sequence[FloatArray] | None
    ) -> Credit:
        """Returns the credit of a trajectory, which is `kept` or masked as a whole, without what is masked."""
        tokens = list[FloatArray]()
        for number, advantages in enumerate(credit.tokens):
            mask = np.full(len(advantages), kept and self._keeps(trajectory, number))
            if stream is not None:
                numbers = stream[number]
                if self.stream_by == "turn" and len(numbers):
                    numbers = np.mean(numbers)
                mask &= (numbers > self.stream_above) & (numbers < self.stream_below)
            tokens.append(np.where(mask, advantages, 0).astype(np.float32))
        return replace(credit, tokens=tuple(tokens))

    def _keeps(self, trajectory: Trajectory, number: int) -> bool:
        """Returns whether a turn of a trajectory is kept."""
        wrong = any(trajectory.turns[number].info.get(name, 0.0) > 0 for name in self.exclude)
        place = {"all": number, "first": 0, "last": len(trajectory.turns) - 1}[self.turns]
        return number == place and not wrong

    def _require_seats(self, groups: Sequence[Group]) -> None:
        known = {trajectory.agent for group in groups for trajectory in group.trajectories}
        if self.seats and known and not known & set(self.seats):
            raise ConfigError(
                f"seats = {list(self.seats)}: no trajectory of the step is of these seats; they are of "
                f"{', '.join(sorted(known))}: name one of these"
            )
