"""Says why a run learns nothing, from what it recorded: named findings, each with its evidence and a remedy.

The findings of a run are about its last stage that plays live. They observe the last `WINDOW` steps, and nothing but
`collapsed` is found in fewer than `MIN_STEPS`. All but `collapsed` and `overfit` need that the stage has not learnt,
and is not successful either, as a policy that solves its tasks has equal rewards and no entropy, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sojourn.errors import RecordError
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Line
from sojourn.record.paired import Evaluation, clear_fall, evaluations
from sojourn.record.run import RunFolder
from sojourn.types import Ending

WINDOW = 10
MIN_STEPS = 5
METRICS = ("success", "cut_off", "malformed", "entropy", "zero_signal")  # that the causes are read from
MOST = 0.9  # a fraction that counts as nearly all
GAIN = 0.05  # in success, of what has learnt
SUCCESSFUL = 0.5
NO_ENTROPY = 0.01  # nats per token
GAP = 0.15  # between success in training and in the evaluation
MORE_CONTEXT = 'raise backend.max_context, or keep less in it: agent.history = "window" or "page"'


@dataclass(frozen=True)
class Finding:
    """Says why a run learns nothing: `cause` with its figures, and the remedy."""

    name: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.remedy}"


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


def findings(store: EpisodeStore, lines: Iterable[Line]) -> list[Finding]:
    """Returns the findings of a run, the most basic one first; none where it learns, or is too short to say.

    `store` holds the episodes of the run, `lines` are those of its metrics.
    """
    try:
        evidence = read_evidence(store, lines)
    except RecordError:  # what cannot be read is told by whoever shows the run
        return []
    return [] if evidence is None else diagnose(evidence)


@dataclass
class LiveDiagnosis:
    """A sink that tells the first finding of each stage, once, after the step at which it first holds; nothing else
    follows from it. `lines` are those of a run that is resumed."""

    store: EpisodeStore
    tell: Callable[[str], None]
    lines: list[Line] = field(default_factory=list[Line])  # of the present stage, until it is told
    told: set[str] = field(default_factory=set[str])  # stages

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        if stage in self.told:
            return
        if self.lines and self.lines[-1].stage != stage:
            self.lines.clear()
        self.lines.append(Line(step, stage, {name: values[name] for name in METRICS if name in values}))
        for finding in findings(self.store, self.lines)[:1]:
            self.told.add(stage)
            self.lines.clear()
            self.tell(f"diagnosis: {finding}")

    def close(self) -> None:
        """Does nothing: the store is closed by whoever opened it."""


def diagnose(evidence: Evidence) -> list[Finding]:
    """Returns the findings of a stage, the most basic one first."""
    if (collapsed := _collapsed(evidence)) is not None:
        return [collapsed]  # whose consequences the others would describe
    if len(evidence.steps) < MIN_STEPS:
        return []
    asked = _CAUSES if evidence.learns_nothing else ()
    return [finding for find in (*asked, _overfit) if (finding := find(evidence)) is not None]


def read_evidence(store: EpisodeStore, lines: Iterable[Line]) -> Evidence | None:
    """Returns the evidence of the last stage of a run that plays live, None where there is none."""
    live = [line for line in lines if "success" in line.values]
    if not live:
        return None
    stage = live[-1].stage
    of_stage = [line for line in live if line.stage == stage]
    every = evaluations(RunFolder.read(store.folder), store)
    first = next((n for n, e in enumerate(every) if _is_of(e.name, stage)), len(every))
    relevant = [e for n, e in enumerate(every) if n == first - 1 or _is_of(e.name, stage)]  # one before, and its own
    return Evidence(stage, [line.values for line in of_stage], _endings(store, of_stage), relevant)


def _endings(store: EpisodeStore, lines: Sequence[Line]) -> Mapping[str, int]:
    """Returns how the episodes of the last steps ended, with their numbers; failed ones are left out."""
    statement = (
        "SELECT ending, count(*) FROM episodes WHERE stage = ? AND step BETWEEN ? AND ? AND error IS NULL "
        "AND ending IS NOT NULL GROUP BY ending"
    )
    recent = lines[-WINDOW:]
    counts = store.rows(statement, (recent[0].stage, recent[0].step, recent[-1].step), lambda row: (row[0], row[1]))
    return dict(counts)


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
        MORE_CONTEXT,
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


def _collapsed(evidence: Evidence) -> Finding | None:
    """Finds a policy that was clearly better in an earlier evaluation, before the stage or within it."""
    own = [e for e in evidence.evaluations if _is_of(e.name, evidence.stage)]
    if not own:
        return None
    last, best = own[-1], max(evidence.evaluations, key=lambda e: e.success.mean)
    fall = clear_fall([e for e in evidence.evaluations if e is not last], last)
    if fall is None and best.success.low < last.success.high + GAIN:
        return None
    tasks = f" ({fall.tasks})" if fall is not None else ""
    weights = "RUN@best" if best in own else f"RUN@{best.name}"
    return Finding(
        "collapsed",
        f"success fell from {best.success.percent} in the evaluation '{best.name}' to {last.success.percent} in "
        f"'{last.name}'{tasks}",
        f"lower optim.lr of the stage '{evidence.stage}' or add the loss 'kl', and begin again from {weights}",
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
        f"success is {trained:.0%} in training {evidence.window}, but {held_out.percent} in the evaluation "
        f"'{own[-1].name}'",
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
