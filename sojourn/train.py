"""The loop: the same for imitation and reinforcement, on-policy and overlapped, on a laptop and on a cluster."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sojourn.batch import Aggregate, to_batch
from sojourn.protocols import Curriculum, Estimator, GroupSource, Loss, Stream, Trainer
from sojourn.rewards.judge import Judge
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True)
class StepResult:
    """What a step did, for whoever records it."""

    groups: Sequence[Group]
    scores: Sequence[Sequence[Score]]
    credit: Sequence[Sequence[Credit]]
    metrics: Mapping[str, float]
    seconds: Mapping[str, float]


@dataclass
class Run:
    """One stage, bound to its parts."""

    steps: int
    groups: GroupSource
    judge: Judge
    providers: Sequence[Stream]
    estimator: Estimator
    losses: Sequence[Loss]
    aggregate: Aggregate
    trainer: Trainer
    curriculum: Curriculum
    after: Callable[[int, StepResult], Awaitable[None]]  # records, evaluates and checkpoints when due
    minibatches: int = 1
    start: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    async def streams(self, groups: Sequence[Group]) -> Streams:
        """Only what the estimator and the losses declared they need; the recipe was refused otherwise."""
        return {stream.provides: await stream(groups, self.trainer) for stream in self.providers}

    @contextmanager
    def clock(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - began


async def train(run: Run) -> None:
    """Trains steps `run.start` to `run.steps`. Each step: take, judge, credit, batch, update, publish, record."""
    for step in range(run.start, run.steps):
        run.seconds = {}
        metrics: dict[str, float] = {}
        with run.clock("rollout"):
            groups = await run.groups.take(step)
        with run.clock("train"):
            scores = await run.judge(groups)
            streams = await run.streams(groups)
            credit = run.estimator(groups, scores, streams)
            batch = to_batch(groups, credit, streams, aggregate=run.aggregate)
            for part in batch.minibatches(run.minibatches):
                metrics |= await run.trainer.forward_backward(part, run.losses)
                metrics |= await run.trainer.optim_step()
        with run.clock("publish"):
            metrics["version"] = await run.trainer.publish()
        run.curriculum.observe(groups, scores)
        await run.after(step, StepResult(groups, scores, credit, metrics, run.seconds))
