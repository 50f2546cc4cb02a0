"""Says why a run learns nothing, from what it recorded: named findings, each with its evidence and a remedy.

The findings of a run are about its last stage that plays live. They observe the last `WINDOW` steps, and nothing is
found in fewer than `MIN_STEPS`. All but `overfit` need that the stage has not learnt, and is not successful either, as
a policy that solves its tasks has equal rewards and no entropy, too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sojourn.errors import RecordError
from sojourn.intervals import Estimate
from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Line
from sojourn.record.run import RunFolder
from sojourn.record.summary import Summary
from sojourn.types import Ending

WINDOW = 10
MIN_STEPS = 5
MOST = 0.9  # a fraction that counts as nearly all
GAIN = 0.05  # in success, of what has learnt
SUCCESSFUL = 0.5
NO_ENTROPY = 0.01  # nats per token
GAP = 0.15  # between success in training and in the evaluation


@dataclass(frozen=True)
class Finding:
    """Says why a run learns nothing: `cause` with its figures, and the remedy."""

    name: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.remedy}"


class Evaluation(NamedTuple):
    name: str
    success: Estimate


@dataclass(frozen=True)
class Evidence:
    """Holds what is known of a stage: its steps' metrics, how the episodes of its last steps ended, and evaluations."""

    stage: str
    steps: Sequence[Mapping[str, float]]
    endings: Mapping[str, int] = field(default_factory=dict[str, int])
    evaluations: Sequence[Evaluation] = ()

    def recent(self, name: str) -> float:
        """Returns the mean of a metric over the last steps, NaN where none has it."""
        return _mean([values[name] for values in self.steps[-WINDOW:] if name in values])

    @property
    def window(self) -> str:
        return f"in the last {min(WINDOW, len(self.steps))} steps of '{self.stage}'"

    @property
    def learns_nothing(self) -> bool:
        """Returns whether success is low and has not risen by more than chance, neither in training nor in the
        evaluations."""
        success = [values["success"] for values in self.steps if math.isfinite(values.get("success", math.nan))]
        half = min(WINDOW, len(success) // 2)
        if not half or self.recent("success") >= SUCCESSFUL:
            return False
        early, late = np.array(success[:half]), np.array(success[-half:])
        noise = math.sqrt((early.var(ddof=half > 1) + late.var(ddof=half > 1)) / half)
        if late.mean() - early.mean() > max(GAIN, 2 * noise):
            return False
        first, last = (self.evaluations[0].success, self.evaluations[-1].success) if self.evaluations else (None, None)
        return first is None or last is None or not last.mean > max(first.mean + GAIN, first.high)


def findings(run: Path, lines: Iterable[Line] | None = None) -> list[Finding]:
    """Returns the findings of a run folder, the most basic one first; none where it learns, or is too short to say.

    `lines` are those of its metrics, where they are known already.
    """
    try:
        evidence = read_evidence(run, metrics.read(run / "metrics.jsonl") if lines is None else lines)
    except RecordError:  # what cannot be read is told by whoever shows the run
        return []
    return [] if evidence is None else diagnose(evidence)


def diagnose(evidence: Evidence) -> list[Finding]:
    """Returns the findings of a stage, the most basic one first."""
    if len(evidence.steps) < MIN_STEPS:
        return []
    asked = _CAUSES if evidence.learns_nothing else ()
    return [finding for find in (*asked, _overfit) if (finding := find(evidence)) is not None]


def read_evidence(run: Path, lines: Iterable[Line]) -> Evidence | None:
    """Returns the evidence of the last stage of a run that plays live, None where there is none yet."""
    live = [line for line in lines if "success" in line.values]
    if not live:
        return None
    stage = live[-1].stage
    of_stage = [line for line in live if line.stage == stage]
    recorded = RunFolder.read(run).evaluations()
    evaluations = [Evaluation(str(e["name"]), Summary.from_json(e["summary"]).overall.success) for e in recorded]
    first = next((n for n, e in enumerate(evaluations) if _is_of(e.name, stage)), len(evaluations))
    relevant = evaluations[max(first - 1, 0) :]  # that before the stage, and its own
    return Evidence(stage, [line.values for line in of_stage], _endings(run, of_stage), relevant)


def _endings(run: Path, lines: Sequence[Line]) -> Mapping[str, int]:
    recent = range(lines[-WINDOW:][0].step, lines[-1].step + 1)
    with EpisodeStore(run) as store:
        rows = store.query(stage=lines[-1].stage, step=recent, failed=False)
        return Counter(row.ending for row in rows if row.ending is not None)


def _is_of(evaluation: str, stage: str) -> bool:
    """Returns whether an evaluation was made in or after a stage (see `Run._evaluate`)."""
    return evaluation == stage or evaluation.startswith(f"{stage}-")


def _cut_off(evidence: Evidence) -> Finding | None:
    if not (fraction := evidence.recent("cut_off")) >= MOST:
        return None
    return Finding(
        "cut_off",
        f"{fraction:.0%} of the actions {evidence.window} were cut off at sampling.max_tokens",
        "raise sampling.max_tokens, or warm up with demonstrations, so that the model learns to end its turns",
    )


def _contexts_full(evidence: Evidence) -> Finding | None:
    episodes = sum(evidence.endings.values())
    full = evidence.endings.get(Ending.TOKENS, 0)
    if not episodes or full < SUCCESSFUL * episodes:
        return None
    return Finding(
        "contexts_full",
        f"{full / episodes:.0%} of the episodes {evidence.window} ended because their context was full",
        'raise backend.max_context, or keep less in it: agent.history = "window" or "page"',
    )


def _malformed(evidence: Evidence) -> Finding | None:
    if not (fraction := evidence.recent("malformed")) >= MOST:
        return None
    return Finding(
        "malformed",
        f"{fraction:.0%} of the actions {evidence.window} could not be read, or were refused by the world",
        'warm up with demonstrations (groups.name = "experts"), or say in the system message what an action looks like '
        "(`sojourn show RUN --find malformed:>0` lists episodes)",
    )


def _no_entropy(evidence: Evidence) -> Finding | None:
    """Finds a policy that does the same in every play of a task. Where no group has a signal, nothing is trained and no
    entropy is measured; there, some tasks that always succeed and others that never do tell of it."""
    entropy, success = evidence.recent("entropy"), evidence.recent("success")
    cause = f"the policy's entropy {evidence.window} is {entropy:.2g} nats per token"
    if not entropy <= NO_ENTROPY:
        if not (evidence.recent("zero_signal") >= MOST and GAIN < success < 1 - GAIN):
            return None
        cause = f"all plays of a task ended alike {evidence.window}, though {success:.0%} of the plays succeeded"
    return Finding(
        "no_entropy",
        f"the policy hardly explores: {cause}",
        "sample at temperature 1, add the loss 'entropy', or lower optim.lr and begin again from an earlier checkpoint",
    )


def _no_signal(evidence: Evidence) -> Finding | None:
    if not (fraction := evidence.recent("zero_signal")) >= MOST:
        return None
    groups = "no group" if fraction > 0.995 else f"only {1 - fraction:.0%} of the groups"
    return Finding(
        "no_signal",
        f"{groups} had differing rewards {evidence.window} (success {evidence.recent('success'):.0%})",
        "give easier tasks, play more episodes of each (groups.size), reward parts of the way, or warm up with "
        "demonstrations",
    )


def _overfit(evidence: Evidence) -> Finding | None:
    own = [e for e in evidence.evaluations if _is_of(e.name, evidence.stage)]
    trained = evidence.recent("success")
    if not own or not math.isfinite(trained):
        return None
    held_out = own[-1].success
    if trained < held_out.mean + GAP or trained < held_out.high + GAIN:
        return None
    return Finding(
        "overfit",
        f"success is {trained:.0%} in training, but {held_out.percent} in the evaluation '{own[-1].name}'",
        "train on more and more varied tasks, and check that the tasks of both splits are of one kind",
    )


_CAUSES: tuple[Callable[[Evidence], Finding | None], ...] = (
    _cut_off,
    _contexts_full,
    _malformed,
    _no_entropy,
    _no_signal,
)


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
