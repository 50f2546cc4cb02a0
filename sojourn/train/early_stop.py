"""Early stopping: a stage ends before its last step, by what the evaluations within it measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from sojourn.config.fields import Range
from sojourn.record.summary import Summary


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """Configures when a stage ends before its last step, by the evaluations within it (`evaluation.every`).

    It ends at the first evaluation whose success is at least `success` (0: no such target), or once `patience`
    evaluations in a row were no better than the best before them, by success, then by reward (0: never for this).

    A stage that is stopped is evaluated and kept as at its last step; then the next stage begins.
    """

    success: Annotated[float, Range(0, 1)] = 0.0
    patience: Annotated[int, Range(0)] = 0

    @property
    def active(self) -> bool:
        return self.success > 0 or self.patience > 0

    def reason(self, results: Sequence[Result]) -> str:
        """Returns why the stage ends after these evaluations of it, oldest first; empty where it goes on."""
        if not results:
            return ""
        last = results[-1]
        if 0 < self.success <= last.success:
            return (
                f"the evaluation after step {last.step} has a success of {last.success:.1%} (target {self.success:.1%})"
            )
        best = max(range(len(results)), key=lambda n: (results[n].success, results[n].reward, -n))
        if not 0 < self.patience <= len(results) - 1 - best:
            return ""
        return (
            f"{self.patience} evaluation{'s' * (self.patience != 1)} in a row did not improve on that after step "
            f"{results[best].step} (success {results[best].success:.1%}, reward {results[best].reward:.3g})"
        )


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
