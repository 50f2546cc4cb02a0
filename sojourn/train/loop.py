"""The training loop. Imitation and RL, on-policy and overlapped runs, and those of several models that learn differ in
their components, not in the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sojourn.abilities import Learns, frozen, reads_critic
from sojourn.batch import Aggregate, choose, to_batch
from sojourn.credit.among_models import of_model
from sojourn.filters import apply_filters
from sojourn.protocols import Estimator, Filter, Loss, Renderer, Source, Stream, Trainer
from sojourn.rewards.reward_cache import ALL_SLOTS, RewardCache, ScoredGroup
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.types import Credit, Episode, Group, SamplingParams, Score, Streams, Trajectory
from sojourn.whole_plays import trained_groups


@dataclass(frozen=True)
class Update:
    """Holds what a model was trained on in a step: groups that have its trajectories alone as trainable ones."""

    groups: Sequence[Group]
    scores: Sequence[Sequence[Score]]
    credit: Sequence[Sequence[Credit]]
    streams: Streams
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class StepResult:
    """Holds what a step is recorded by: the groups that it took, with their scores; what each model was trained on, by
    its name; and all groups that were `played`, redrawn and filtered ones included."""

    groups: Sequence[Group]
    scores: Sequence[Sequence[Score]]
    updates: Mapping[str, Update]
    played: Sequence[ScoredGroup]


@dataclass(frozen=True, kw_only=True)
class Learner:
    """Trains one model on the trajectories that it took."""

    trainer: Trainer
    estimator: Estimator
    losses: Sequence[Loss]
    streams: Sequence[Stream] = ()
    aggregate: Aggregate
    minibatches: int = 1
    filters: Sequence[Filter] = ()
    renderer: Renderer | None = None  # for streams that render texts which were not sampled
    model: str = SamplingParams.model

    async def update(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> Update:
        """Filters the groups, reads streams, computes credit, makes a batch, and updates the model."""
        kept, kept_scores = apply_filters(self.filters, *taken_by(self.model, groups, scores))
        streams, learned = await self.read_streams(kept, kept_scores)
        credit = of_model(self.model, self.estimator, groups, scores)(kept, kept_scores, streams)
        trained = trained_groups((*self.losses, *self.streams), kept)
        batch = to_batch(trained, credit, streams, aggregate=self.aggregate, losses=self.losses)
        passes: list[Mapping[str, float]] = []
        for minibatch in batch.minibatches(self.minibatches, constant=self.aggregate.by == "constant"):
            chosen = await choose(minibatch, self.losses, self.trainer)
            pass_metrics = await self.trainer.forward_backward(chosen, self.losses)
            passes.append({**pass_metrics, **await self.trainer.optim_step()})
        return Update(kept, kept_scores, credit, streams, {**_combined(passes), **learned})

    async def read_streams(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]
    ) -> tuple[Streams, dict[str, float]]:
        """Returns the step's streams by name, and metrics (`<stream>_<name>`) of those that then learn."""
        critic = any(reads_critic(stream) for stream in self.streams)
        context = TrainerPasses(groups, scores, self.trainer, self.renderer, critic=critic)
        values = {stream.provides: await stream(context) for stream in self.streams}
        learned = {s.provides: await s.learn(context) for s in self.streams if isinstance(s, Learns) and not frozen(s)}
        return values, {f"{name}_{key}": value for name, metrics in learned.items() for key, value in metrics.items()}


@dataclass(kw_only=True)
class StageLoop:
    """Holds the components that train one stage of a run."""

    steps: int
    source: Source
    rewards: RewardCache
    learners: Sequence[Learner]
    observe: Callable[[Sequence[Group], Sequence[Sequence[Score]]], None]  # tells curricula, replay buffers ...
    on_step_end: Callable[[int, StepResult], Awaitable[bool]]  # records; evaluates when due; True ends the stage
    start: int = 0
    slots_end: Callable[[int], int] = lambda step: ALL_SLOTS  # a step records the groups of slots below this number


async def train(stage: StageLoop) -> None:
    """Trains steps `stage.start` to `stage.steps`. Each step takes groups and scores them, updates every model that
    learns, publishes them together, and records what happened."""
    for step in range(stage.start, stage.steps):
        groups = await stage.source.take(step)
        scores = await stage.rewards(groups)
        updates = {learner.model: await learner.update(groups, scores) for learner in stage.learners}
        for learner in stage.learners:
            version, update = await learner.trainer.publish(), updates[learner.model]
            updates[learner.model] = replace(update, metrics={**update.metrics, "version": version})
        played = stage.rewards.pop(groups, below=stage.slots_end(step))
        stage.observe([scored.group for scored in played], [scored.scores for scored in played])
        if await stage.on_step_end(step, StepResult(groups, scores, updates, played)):
            return


def taken_by(
    model: str, groups: Sequence[Group], scores: Sequence[Sequence[Score]]
) -> tuple[Sequence[Group], Sequence[Sequence[Score]]]:
    """Returns the groups in which a model took trajectories, with these alone as trainable ones, and their scores."""
    return chosen(lambda one: one.model == model, groups, scores)


def chosen(
    keep: Callable[[Trajectory], bool], groups: Sequence[Group], scores: Sequence[Sequence[Score]]
) -> tuple[Sequence[Group], Sequence[Sequence[Score]]]:
    """Returns the groups that have trajectories to keep, with these alone as trainable ones, and their scores."""
    if all(keep(one) for group in groups for one in group.trajectories):
        return groups, scores

    def own(episode: Episode) -> Episode:
        return replace(
            episode, trajectories=tuple(replace(t, trainable=t.trainable and keep(t)) for t in episode.trajectories)
        )

    pairs = [
        (
            replace(group, episodes=tuple(map(own, group.episodes))),
            [score for score, one in zip(of_group, group.trajectories, strict=True) if keep(one)],
        )
        for group, of_group in zip(groups, scores, strict=True)
    ]
    kept = [(group, own_scores) for group, own_scores in pairs if own_scores]
    return [group for group, _ in kept], [own_scores for _, own_scores in kept]


def _combined(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Adds up the updates' metrics whose names end in `_tokens`, and averages the others."""
    names = dict.fromkeys(name for update in updates for name in update)
    values = {name: [update[name] for update in updates if name in update] for name in names}
    return {name: sum(v) / (1 if name.endswith("_tokens") else len(v)) for name, v in values.items()}
