"""Early stopping: a stage ends before its last step, by what the evaluations within it measured."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from sojourn.config.fields import Range
from sojourn.record.metrics import Line
from sojourn.record.summary import Summary


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """Configures when a stage ends before its last step, by the evaluations within it (`evaluation.every`) or by time.

    It ends at the first evaluation whose success is at least `success` (0: no such target), or once `patience`
    evaluations in a row were no better than the best before them, by success, then by reward (0: never for this), or
    after the first step by which its steps have taken `minutes`, without evaluations and checkpoints, or have sampled
    `tokens`, so that methods can be compared at equal cost (0: no limit).

    A stage that is stopped is evaluated and kept as at its last step; then the next stage begins. For `repeats`, the
    evaluations are those at the end of each round, and the steps those of all rounds.
    """

    success: Annotated[float, Range(0, 1)] = 0.0
    patience: Annotated[int, Range(0)] = 0
    minutes: Annotated[float, Range(0)] = 0.0
    tokens: Annotated[int, Range(0)] = 0

    @property
    def evaluates(self) -> bool:
        """Returns whether evaluations decide."""
        return self.success > 0 or self.patience > 0

    def reason(self, results: Sequence[Result], spent: Spent, unit: str = "step") -> str:
        """Returns why the stage ends after these evaluations of it, oldest first, and this effort; empty where it goes
        on."""
        if 0 < 60 * self.minutes <= spent.seconds:
            return f"its steps took {spent.seconds / 60:.1f} minutes (limit {self.minutes:g})"
        if 0 < self.tokens <= spent.tokens:
            return f"its steps sampled {spent.tokens:,} tokens (limit {self.tokens:,})"
        if not results:
            return ""
        last = results[-1]
        if 0 < self.success <= last.success:
            return (
                f"the evaluation after {unit} {last.step} has a success of {last.success:.1%} "
                f"(target {self.success:.1%})"
            )
        best = max(range(len(results)), key=lambda n: (results[n].success, results[n].reward, -n))
        if not 0 < self.patience <= len(results) - 1 - best:
            return ""
        return (
            f"{self.patience} evaluation{'s' * (self.patience != 1)} in a row did not improve on that after {unit} "
            f"{results[best].step} (success {results[best].success:.1%}, reward {results[best].reward:.3g})"
        )


class Spent(NamedTuple):
    """Says how long steps took, and how many tokens were sampled for them."""

    seconds: float = 0.0
    tokens: int = 0

    def more(self, values: Mapping[str, float]) -> Spent:
        """Returns this and what a step took, by its metrics."""
        seconds, tokens = values.get("seconds_step", 0.0), values.get("sampled_tokens", 0.0)
        return Spent(self.seconds + seconds, self.tokens + int(tokens))


def spent(lines: Iterable[Line], stages: Collection[str]) -> Spent:
    """Returns what the recorded steps of the stages took."""
    return functools.reduce(Spent.more, (line.values for line in lines if line.stage in stages), Spent())


@dataclass(frozen=True)
class Result:
    """The result of an evaluation after `step` steps of a stage."""

    step: int
    success: float
    reward: float


def results(evaluations: Iterable[Mapping[str, Any]], stage: str, step: int) -> list[Result]:
    """Returns the results of a stage's evaluations up to a step, oldest first, from the records of a run folder."""
    found: dict[int, Result] = {}
    for evaluation in evaluations:
        at = int(evaluation["step"])
        if evaluation["stage"] == stage and evaluation["name"] != stage and at <= step:
            overall = Summary.from_json(evaluation["summary"]).overall
            found[at] = Result(at, overall.success.mean, overall.reward.mean)
    return [found[at] for at in sorted(found)]


def evaluations_within(steps: int, every: int) -> int:
    """Returns how many evaluations a stage has before its last step."""
    return max(steps - 1, 0) // every if every else 0
