"""The training loop. Imitation and RL, on-policy and overlapped runs differ in their components, not in the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from sojourn.abilities import Learns, reads_critic
from sojourn.batch import Aggregate, choose, to_batch
from sojourn.filters import apply_filters
from sojourn.protocols import Curriculum, Estimator, Filter, Loss, Renderer, Source, Stream, Trainer
from sojourn.rewards.reward_cache import RewardCache, ScoredGroup
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.types import Credit, Group, Score, Streams

Learnt = Mapping[str, float]


@dataclass(frozen=True)
class StepResult:
    """The results of a step, to be recorded. `groups` were trained; `played` also has what was redrawn or left out."""

    groups: Sequence[Group]
    scores: Sequence[Sequence[Score]]
    credit: Sequence[Sequence[Credit]]
    streams: Streams
    metrics: Mapping[str, float]
    played: Sequence[ScoredGroup]


@dataclass
class StageLoop:
    """The parts that train one stage of a run."""

    steps: int
    groups: Source
    rewards: RewardCache
    providers: Sequence[Stream]
    estimator: Estimator
    losses: Sequence[Loss]
    aggregate: Aggregate
    trainer: Trainer
    curriculum: Curriculum
    after: Callable[[int, StepResult], Awaitable[None]]  # records, evaluates and checkpoints when due
    minibatches: int = 1
    start: int = 0
    filters: Sequence[Filter] = ()
    renderer: Renderer | None = None  # for streams that render what was not sampled
    slots: Callable[[int], int] = lambda step: 2**62  # the first slot that is of a later step

    async def streams(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> tuple[Streams, Learnt]:
        """Only what the estimator and the losses declared they need; the recipe was refused otherwise. Those that learn
        do so when all have been read, and say how well under `<stream>_<name>`."""
        critic = any(reads_critic(stream) for stream in self.providers)
        passes = TrainerPasses(groups, scores, self.trainer, self.renderer, critic=critic)
        found = {stream.provides: await stream(passes) for stream in self.providers}
        learnt = {s.provides: await s.learn(passes) for s in self.providers if isinstance(s, Learns)}
        return found, {f"{name}_{key}": value for name, said in learnt.items() for key, value in said.items()}


async def train(run: StageLoop) -> None:
    """Trains steps `run.start` to `run.steps`. Each step: take, judge, credit, batch, update, publish, record."""
    for step in range(run.start, run.steps):
        updates: list[Mapping[str, float]] = []
        groups = await run.groups.take(step)
        scores = await run.rewards(groups)
        kept, judged = apply_filters(run.filters, groups, scores)
        streams, learnt = await run.streams(kept, judged)
        credit = run.estimator(kept, judged, streams)
        batch = to_batch(kept, credit, streams, aggregate=run.aggregate, losses=run.losses)
        for part in batch.minibatches(run.minibatches, constant=run.aggregate.by == "constant"):
            chosen = await choose(part, run.losses, run.trainer)
            observed = await run.trainer.forward_backward(chosen, run.losses)
            updates.append({**observed, **await run.trainer.optim_step()})
        metrics = {**_together(updates), **learnt, "version": await run.trainer.publish()}
        played = run.rewards.pop_before(run.slots(step))
        run.curriculum.observe([of.group for of in played], [of.scores for of in played])
        await run.after(step, StepResult(kept, judged, credit, streams, metrics, played))


def _together(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of a step's updates as one: counts of tokens added up, the rest averaged."""
    names = dict.fromkeys(name for update in updates for name in update)
    found = {name: [update[name] for update in updates if name in update] for name in names}
    return {n: sum(values) / (1 if n.endswith("_tokens") else len(values)) for n, values in found.items()}
