"""Imitation of better turns in trajectories that went better than their task let expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from sojourn.config.fields import Range
from sojourn.credit import temporal
from sojourn.credit.by_turn import concatenated, returns_to_go
from sojourn.credit.relative import Values
from sojourn.types import Credit, Group, Score, Streams, Trajectory


@dataclass(frozen=True, kw_only=True)
class DigiRL(temporal.CriticEstimator):
    """Advantage 1 for turns that pass a filter of steps, in trajectories that pass a filter of instructions, and 0 for
    all others (advantage-weighted regression with hard filters of DigiRL: Bai et al. 2024, arXiv:2406.11896, by its
    code).

    A turn passes where V(s') - V(s) + r + G > `margin`. V is the critic before the turn's first token, r the turn's
    reward, and G the return from there on, discounted by `discount`: the return is right but noisy, the critic's
    difference smooth but biased, and their sum is the code's doubly robust estimate. A trajectory passes where its
    outcome minus the stream `instruction_value`, the chance of success that its task had from the start, is among the
    highest `fraction` of the step's; with 1, all pass, and the stream is not read. So easy tasks, which teach nothing,
    are left out. The critic's target is 1 where G is above 0, in all trajectories, whether they pass or not.

    It is for the loss `nll`. The paper has two critics trained by cross-entropy, of which the smaller counts; here one
    is trained by the loss `value`. Their critic is evaluated after the end of an episode, too, where ours is 0. Their
    instruction filter takes the quantile over all trajectories that were ever collected.
    """

    discount: Annotated[float, Range(above=0, max=1)] = 0.9
    margin: float = 0.05
    fraction: Annotated[float, Range(above=0, max=1)] = 0.1

    @property
    def extra_streams(self) -> tuple[str, ...]:
        return ("instruction_value",) if self.fraction < 1 else ()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        credits = super().__call__(groups, scores, streams)
        if self.fraction == 1:
            return credits
        gains = [
            [score.result - _mean(turns) for score, turns in zip(judged, expected, strict=True)]
            for judged, expected in zip(scores, streams["instruction_value"], strict=True)
        ]
        every = concatenated(np.array(gain) for gain in gains)
        cutoff = float(np.quantile(every, 1 - self.fraction)) if len(every) else 0.0
        return [
            [one if gain >= cutoff else _without_advantage(one) for one, gain in zip(of_group, of_gains, strict=True)]
            for of_group, of_gains in zip(credits, gains, strict=True)
        ]

    def _credit(
        self,
        trajectory: Trajectory,
        score: Score,
        values: temporal.PerTurn,
        next_values: temporal.PerTurn,
        expected: temporal.PerTurn = (),
    ) -> Credit:
        steps = temporal.turn_steps(score, values, temporal.bootstrap_value(trajectory, next_values), 1.0)
        returns = returns_to_go(score, self.discount)
        after: Values = np.append(steps.values, steps.bootstrap)[1:]
        passes = after - steps.values + steps.rewards + returns > self.margin
        targets = temporal.at_first_token(trajectory, (returns > 0).astype(np.float64))
        return Credit(Credit.per_turn(trajectory, passes).tokens, targets)


def _mean(turns: temporal.PerTurn) -> float:
    """Returns the mean over all tokens, which all have the same value; 0 without tokens."""
    every = concatenated(turns)
    return float(every.mean()) if len(every) else 0.0


def _without_advantage(credit: Credit) -> Credit:
    return replace(credit, tokens=tuple(np.zeros_like(turn) for turn in credit.tokens))
