"""The models that learn in a stage of a run, each with components of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from sojourn.abilities import BindsStreamModels, ReleasesResources
from sojourn.protocols import Stateful, Stream
from sojourn.train import trained_models
from sojourn.train.assemble import Components
from sojourn.train.loop import Learner
from sojourn.train.recipe import Record, Stage, all_streams
from sojourn.train.seating import POLICY


@dataclass(frozen=True)
class StageLearners:
    """Holds the stage as it is for each model that learns in it, by its name, the policy's first."""

    stages: Mapping[str, Stage]
    components: Components
    record: Record

    @classmethod
    def of(cls, stage: Stage, components: Components, record: Record) -> StageLearners:
        """Returns the learners of a stage, whose streams ask the run's models where they ask any for text."""

        def bound(stream: Stream) -> Stream:
            return stream.bind_models(components.asked) if isinstance(stream, BindsStreamModels) else stream

        stages = {
            model: replace(own, streams=tuple(map(bound, own.streams))) for model, own in stage.of_models().items()
        }
        return cls(stages, components, record)

    @property
    def measures_drift(self) -> bool:
        return self.record.drift_groups > 0 and self.stages[POLICY].groups.live

    def begin(self) -> None:
        """Begins the optimisers of a stage. A reference is kept where a stream reads it, or the drift is measured."""
        for model, stage in self.stages.items():
            reference = any(stream.reference for stream in self._streams(model))
            reference |= model == POLICY and self.measures_drift
            updates = stage.steps * stage.minibatches
            self.components.trainers[model].begin(stage.optim, updates, reference=reference)

    async def go_back(self, weights: Path) -> None:
        """Begins the optimisers anew, from weights in a folder, which samplers are given."""
        trained_models.load(self.components.trainers, weights)
        self.begin()
        await trained_models.publish(self.components.trainers)

    def learners(self) -> list[Learner]:
        return [
            Learner(
                model=model,
                trainer=self.components.trainers[model],
                estimator=stage.estimator,
                losses=stage.losses,
                streams=self._streams(model),
                aggregate=stage.aggregate,
                minibatches=stage.minibatches if stage.trains else 0,
                filters=stage.filters,
                renderer=self.components.renderer,
            )
            for model, stage in self.stages.items()
        ]

    def parts(self) -> dict[str, object]:
        """Returns what may have state, by the names under which a checkpoint stores it."""
        prefixes = {model: "" if model == POLICY else f"learners.{model}." for model in self.components.trainers}
        parts: dict[str, object] = {f"{of}trainer": self.components.trainers[model] for model, of in prefixes.items()}
        for model, stage in self.stages.items():
            of = prefixes[model]
            parts |= {f"{of}estimator": stage.estimator}
            parts |= {f"{of}streams.{stream.provides}": stream for stream in stage.streams}
            parts |= {f"{of}losses.{number}": loss for number, loss in enumerate(stage.losses)}
        return parts

    def hand_over(self, following: StageLearners | None) -> None:
        """Copies the state of each model's streams into its equal streams of the next stage, and closes those of this
        one."""
        for model, stage in self.stages.items():
            own = {stream.provides: stream for stream in stage.streams}
            for stream in following.stages[model].streams if following and model in following.stages else ():
                if isinstance(stream, Stateful) and (same := own.get(stream.provides)) == stream:
                    stream.restore(cast(Stateful, same).state())
            for stream in own.values():
                if isinstance(stream, ReleasesResources):
                    stream.close()

    def _streams(self, model: str) -> list[Stream]:
        """Returns the streams that a model reads; those that are only recorded are the policy's."""
        stage = self.stages[model]
        return all_streams(self.record, stage) if model == POLICY else list(stage.streams)
