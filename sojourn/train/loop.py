"""The training loop. Imitation and RL, on-policy and overlapped runs differ in their components, not in the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from sojourn.abilities import Learns, frozen, reads_critic
from sojourn.batch import Aggregate, choose, to_batch
from sojourn.filters import apply_filters
from sojourn.protocols import Estimator, Filter, Loss, Renderer, Source, Stream, Trainer
from sojourn.rewards.reward_cache import ALL_SLOTS, RewardCache, ScoredGroup
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True)
class StepResult:
    """Holds what a step is recorded by. `groups` were trained; `played` also has redrawn and filtered groups."""

    groups: Sequence[Group]
    scores: Sequence[Sequence[Score]]
    credit: Sequence[Sequence[Credit]]
    streams: Streams
    metrics: Mapping[str, float]
    played: Sequence[ScoredGroup]


@dataclass(kw_only=True)
class StageLoop:
    """Holds the components that train one stage of a run."""

    steps: int
    source: Source
    rewards: RewardCache
    streams: Sequence[Stream]
    estimator: Estimator
    losses: Sequence[Loss]
    aggregate: Aggregate
    trainer: Trainer
    observe: Callable[[Sequence[Group], Sequence[Sequence[Score]]], None]  # tells curricula, replay buffers ...
    on_step_end: Callable[[int, StepResult], Awaitable[bool]]  # records; evaluates when due; True ends the stage
    minibatches: int = 1
    start: int = 0
    filters: Sequence[Filter] = ()
    renderer: Renderer | None = None  # for streams that render texts which were not sampled
    slots_end: Callable[[int], int] = lambda step: ALL_SLOTS  # a step records the groups of slots below this number

    async def read_streams(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]
    ) -> tuple[Streams, dict[str, float]]:
        """Returns the step's streams by name, and metrics (`<stream>_<name>`) of those that then learn."""
        critic = any(reads_critic(stream) for stream in self.streams)
        context = TrainerPasses(groups, scores, self.trainer, self.renderer, critic=critic)
        values = {stream.provides: await stream(context) for stream in self.streams}
        learned = {s.provides: await s.learn(context) for s in self.streams if isinstance(s, Learns) and not frozen(s)}
        return values, {f"{name}_{key}": value for name, metrics in learned.items() for key, value in metrics.items()}


async def train(stage: StageLoop) -> None:
    """Trains steps `stage.start` to `stage.steps`. Each step takes groups, scores and filters them, reads streams,
    computes credit, makes a batch, updates the model, publishes it, and records what happened."""
    for step in range(stage.start, stage.steps):
        updates: list[Mapping[str, float]] = []
        groups = await stage.source.take(step)
        scores = await stage.rewards(groups)
        kept, kept_scores = apply_filters(stage.filters, groups, scores)
        streams, learned = await stage.read_streams(kept, kept_scores)
        credit = stage.estimator(kept, kept_scores, streams)
        batch = to_batch(kept, credit, streams, aggregate=stage.aggregate, losses=stage.losses)
        for minibatch in batch.minibatches(stage.minibatches, constant=stage.aggregate.by == "constant"):
            chosen = await choose(minibatch, stage.losses, stage.trainer)
            pass_metrics = await stage.trainer.forward_backward(chosen, stage.losses)
            updates.append({**pass_metrics, **await stage.trainer.optim_step()})
        metrics = {**_combined(updates), **learned, "version": await stage.trainer.publish()}
        played = stage.rewards.pop(groups, below=stage.slots_end(step))
        stage.observe([scored.group for scored in played], [scored.scores for scored in played])
        if await stage.on_step_end(step, StepResult(kept, kept_scores, credit, streams, metrics, played)):
            return


def _combined(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Adds up the updates' metrics whose names end in `_tokens`, and averages the others."""
    names = dict.fromkeys(name for update in updates for name in update)
    values = {name: [update[name] for update in updates if name in update] for name in names}
    return {name: sum(v) / (1 if name.endswith("_tokens") else len(v)) for name, v in values.items()}
