"""Runs the stages of a recipe one after another, evaluates between them, records everything, and can resume."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

from sojourn.abilities import HasNote, Measured, ReleasesResources, group_size
from sojourn.batch.weigh import weigh
from sojourn.display import Display
from sojourn.errors import RecordError
from sojourn.protocols import Source, Stateful, Stream
from sojourn.record import checkpoint, metrics
from sojourn.record.checkpoint import Checkpoint
from sojourn.record.episodes import vocabulary
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.run_status import CHAT_FORMAT, SKIPPED_CHECKPOINTS
from sojourn.record.run_weights import is_best
from sojourn.record.stopped import Stopped, record_stop, stopped_stages
from sojourn.record.summary import Summary, summarise
from sojourn.render import pieces
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.train import early_stop
from sojourn.train.assemble import Components, assemble
from sojourn.train.episode_writer import EpisodeWriter
from sojourn.train.evaluate import evaluate, panel
from sojourn.train.group_checks import check_groups
from sojourn.train.loop import EVERY_SLOT, StageLoop, StepResult, train
from sojourn.train.recipe import Recipe, Stage, recorded_streams
from sojourn.train.step_metrics import count_metrics, drift, policy_metrics
from sojourn.train.weights import check_models, identities, initial_weights
from sojourn.types import Episode

BEFORE = "before"


@dataclass
class Run:
    """Executes a recipe and records it in a run folder."""

    recipe: Recipe
    folder: RunFolder
    display: Display
    components: Components
    writer: EpisodeWriter
    sinks: metrics.Sinks
    recorded: set[str] = field(default_factory=set)  # ids of the stage's episodes that the store holds, if not live
    _streams: dict[str, Stream] = field(default_factory=dict)  # of the stage that began last, by what they provide
    _errors_before: int = 0  # failed episodes before the present step
    _now: tuple[str, int] = (BEFORE, 0)  # the stage and step under which a failure is recorded
    _source: Source | None = None
    _best_at_stop: bool = False  # whether the evaluation that stopped the stage is the best of the run

    def see(self, episode: Episode) -> None:
        """Shows an episode that has ended, and keeps it to be recorded if it failed."""
        if episode.error is not None:
            self.writer.failed[episode.id] = episode
        self.display.episode(episode)

    async def run(self, resumed: Checkpoint | None) -> dict[str, Summary]:
        """Runs all stages that are not done yet, and returns every evaluation of the run by its name. Where an error
        ends the run, what failed until then is recorded."""
        try:
            return await self._run(resumed)
        except Exception:
            with suppress(Exception):  # the error that ended the run is the one to report
                await self.writer.start_failed(*self._now, self._unused_demonstrations())
                await self.writer.finish()
            raise

    async def _run(self, resumed: Checkpoint | None) -> dict[str, Summary]:
        position = resumed.state() if resumed is not None else None
        if position is None:
            await check_groups(self.recipe)
            await initial_weights(self.components)
            await self._evaluate(BEFORE, BEFORE, 0)
        for earlier in self.folder.evaluations() if position is not None else ():
            self.display.recall(earlier["name"], Summary.from_json(earlier["summary"]))
        try:
            for number, stage in enumerate(self.recipe.stages):
                if position is not None and number < position["stage"]:
                    continue
                here = position if position is not None and number == position["stage"] else None
                await self._stage(number, stage, resumed if here else None, here)
        finally:
            self._begin_streams(())
        return {e["name"]: Summary.from_json(e["summary"]) for e in self.folder.evaluations()}

    async def _stage(self, number: int, stage: Stage, resumed: Checkpoint | None, position: Any) -> None:
        trainer = self.components.trainer
        wants_reference = any(stream.reference for stream in stage.streams) or self._measures_drift(stage)
        trainer.begin(stage.optim, stage.steps * stage.minibatches, reference=wants_reference)
        seen = sum(earlier.groups.tasks(earlier.steps) for earlier in self.recipe.stages[:number])
        self._best_at_stop = False
        self._source = stage.groups.bind(self.components, stage.name, stage.steps, seen)
        self._begin_streams(stage.streams)
        start = position["step"] if resumed is not None else 0
        end = self._end(stage, start)
        if resumed is not None:
            trainer.load(resumed.weights, weights_only=start == end)
            for name, part in self._stateful(stage).items():
                if start < end or name in position["parts"]:
                    what = f"'{name}' ({type(part).__name__}) in {resumed.path}"
                    with checkpoint.restoring(what, f"the stage '{stage.name}'"):
                        part.restore(position["parts"][name])
            trainer.version -= 1  # published again below, under the number it had
            await trainer.publish()
        self._truncate_records(number, stage, start)
        self._now = stage.name, start
        live = stage.groups.live
        expected = stage.groups.width * (group_size(stage.groups) or 0) if live else 0
        self.display.stage(stage.name, stage.steps, start=start, episodes=expected)
        loop = StageLoop(
            steps=end,
            start=start,
            source=self._source,
            rewards=self.components.rewards,
            filters=stage.filters,
            streams=[*stage.streams, *recorded_streams(self.recipe.record, stage)],
            estimator=stage.estimator,
            losses=stage.losses,
            aggregate=stage.aggregate,
            minibatches=stage.minibatches,
            trainer=trainer,
            renderer=self.components.renderer,
            curriculum=self.components.curriculum,
            on_step_end=lambda step, result: self._end_step(number, stage, step, result),
            first_slot_after=lambda step: (step + 1) * stage.groups.width if live else EVERY_SLOT,
        )
        self._reset_measurements()
        try:
            await train(loop)
        finally:
            await self._source.close()
            await self.writer.finish()
        trained, end = start < end, self._end(stage, self._now[1])
        if trained:
            saved = self._checkpoint(number, end, ended=True)
            if self._best_at_stop:
                saved.mark_best()
        if trained or not any(e["name"] == stage.name for e in self.folder.evaluations()):
            best = await self._evaluate(stage.name, stage.name, end)
            if best:
                checkpoint.checkpoints(self.folder.checkpoints)[-1].mark_best()

    def _end(self, stage: Stage, start: int) -> int:
        """Returns after which step a stage ends that has done `start` steps: its last, or that at which it was stopped.
        Where it was stopped later than that, it is resumed from an earlier checkpoint, and will be stopped again."""
        stopped = stopped_stages(self.folder).get(stage.name)
        if stopped is not None and stopped.step == start:
            return start
        record_stop(self.folder, stage.name, None)
        return stage.steps

    def _begin_streams(self, streams: Sequence[Stream]) -> None:
        """Copies the state of the last stage's streams into equal streams of this stage, and closes the old ones."""
        earlier, self._streams = self._streams, {stream.provides: stream for stream in streams}
        for stream in streams:
            if isinstance(stream, Stateful) and (same := earlier.get(stream.provides)) == stream:
                stream.restore(cast(Stateful, same).state())
        for stream in earlier.values():
            if isinstance(stream, ReleasesResources):
                stream.close()

    def _stateful(self, stage: Stage) -> dict[str, Stateful]:
        """Returns all stateful components, by the names under which a checkpoint stores them."""
        components = self.components
        parts = {
            "trainer": components.trainer,
            "curriculum": components.curriculum,
            "reward": components.rewards.reward,
        }
        parts |= {"groups": self._source, "estimator": stage.estimator}
        parts |= {f"streams.{stream.provides}": stream for stream in stage.streams}
        parts |= {f"losses.{number}": loss for number, loss in enumerate(stage.losses)}
        return {name: part for name, part in parts.items() if isinstance(part, Stateful)}

    def _truncate_records(self, number: int, stage: Stage, start: int) -> None:
        """Removes whatever a killed run recorded beyond the point it is resumed at."""
        self.writer.store.truncate(stage.name, start)
        for later in self.recipe.stages[number + 1 :]:
            self.writer.store.truncate(later.name, 0)
        self.recorded = {entry.id for entry in self.writer.store.query(stage=stage.name)}

    async def _end_step(self, number: int, stage: Stage, step: int, result: StepResult) -> bool:
        """Records a step; evaluates and checkpoints where due. Returns whether the stage ends here."""
        await self._record(stage, step, result)
        if not stage.groups.live:
            await self.writer.start_failed(*self._now)
        self._now = stage.name, step + 1
        values = self._step_metrics(stage, result)
        if self._measures_drift(stage):
            count = self.recipe.record.drift_groups
            values["drift"] = await drift(self.components.trainer, result.groups, step, count)
        self.sinks.write(step, stage.name, values)
        self.display.step(step, values)
        best, every = False, self.recipe.evaluation.every
        if every and (step + 1) % every == 0 and step + 1 < stage.steps:
            best = await self._evaluate(f"{stage.name}-{step + 1}", stage.name, step + 1)
            if self._stops(stage, step + 1):
                self._best_at_stop = best
                return True
        due = self.recipe.record.checkpoint_every
        if best or (due and (step + 1) % due == 0 and step + 1 < stage.steps):
            await self.writer.finish()
            saved = self._checkpoint(number, step + 1)
            if best:
                saved.mark_best()
        self._reset_measurements()  # what recording and evaluation took is not the next step's
        return False

    def _stops(self, stage: Stage, step: int) -> bool:
        """Returns whether a stage ends early after the evaluation of a step; the reason is recorded and shown."""
        reason = stage.early_stop.reason(early_stop.results(self.folder.evaluations(), stage.name, step))
        if reason:
            record_stop(self.folder, stage.name, Stopped(step, reason))
            self.display.message(f"the stage '{stage.name}' ends after {step} of {stage.steps} steps: {reason}")
        return bool(reason)

    async def _record(self, stage: Stage, step: int, result: StepResult) -> None:
        """Records the trained groups with their credit and streams, and all other episodes with their scores.

        Episodes that were not played live are recorded when they are first seen, not in every pass over them.
        """
        known = set[str]() if stage.groups.live else self.recorded
        new = [n for n, group in enumerate(result.groups) if group.episodes[0].id not in known]
        trained: list[Any] = [[column[n] for n in new] for column in (result.groups, result.scores, result.credit)]
        streams = {**result.streams, "weight": weigh(result.groups, stage.aggregate)}
        columns = {name: [values[n] for n in new] for name, values in streams.items()}
        done = known | {episode.id for group in result.groups for episode in group.episodes}
        rest = [s.select([n for n, e in enumerate(s.group.episodes) if e.id not in done]) for s in result.played]
        untrained = [scored for scored in rest if scored.group.episodes]
        others = [[scored.group for scored in untrained], [scored.scores for scored in untrained]]
        await self.writer.start(stage.name, step, [*trained, columns], others)
        if not stage.groups.live:
            self.recorded |= {episode.id for scored in result.played for episode in scored.group.episodes}

    def _unused_demonstrations(self) -> Sequence[ScoredGroup]:
        """Returns the groups that were scored in a step that ended with an error, unless the policy played them."""
        live = self._source is None or any(s.groups.live for s in self.recipe.stages if s.name == self._now[0])
        return () if live else self.components.rewards.pop_before(EVERY_SLOT)

    def _measures_drift(self, stage: Stage) -> bool:
        return stage.groups.live and self.recipe.record.drift_groups > 0

    def _step_metrics(self, stage: Stage, result: StepResult) -> dict[str, float]:
        """Returns the step's metrics. Those of the policy make sense only for groups that it played itself."""
        live = stage.groups.live
        counts = count_metrics(result)
        spent = self.components.timeline.take()
        seconds = sum(spent.values())
        return {
            **result.metrics,
            **(policy_metrics(result, int(result.metrics["version"]) - 1) if live else {}),
            **counts,
            "errors": self.components.runner.errors - self._errors_before,
            **(self._sampler_metrics() if live else {}),
            **(self._source.metrics() if isinstance(self._source, Measured) else {}),
            **{f"seconds_{activity}": part for activity, part in spent.items()},
            "seconds_step": seconds,
            "episodes_per_s": counts["episodes"] / max(seconds, 1e-9),
        }

    def _reset_measurements(self) -> None:
        """Begins to measure anew, so that evaluations and checkpoints are counted in no step."""
        self.components.timeline.take()
        self._errors_before = self.components.runner.errors
        self._sampler_metrics()

    def _sampler_metrics(self) -> Mapping[str, float]:
        """Returns the sampler's own metrics since they were last asked for, where it has any."""
        return self.components.sampler.metrics() if isinstance(self.components.sampler, Measured) else {}

    async def _evaluate(self, name: str, stage: str, step: int) -> bool:
        """Plays the evaluation tasks, and returns whether these weights are the best and are to be kept. With `max_lag`
        above 0, rollouts of later steps use the engine meanwhile."""
        self.display.evaluating(name, len(panel(self.components)) * self.recipe.evaluation.samples)
        await self.writer.finish()
        self.writer.store.truncate(f"evaluation-{name}", 0)
        training, self._now = self._now, (f"evaluation-{name}", step)
        done = await evaluate(self.components, f"evaluation-{name}")
        self._now = training
        await self.writer.start(f"evaluation-{name}", step, [done.groups, done.scores])
        await self.writer.finish()
        summary = summarise(done.groups, done.scores)
        self.folder.add_evaluation(name, stage, step, summary)
        self.display.evaluation(name, summary)
        return self.recipe.record.keep_best and is_best(self.folder, name)

    def _checkpoint(self, number: int, step: int, ended: bool = False) -> Checkpoint:
        """Writes a checkpoint. At the end of a stage, earlier ones of the stage are deleted, and it has the weights
        without the optimiser; after the last stage, it has either all of it or no state of streams either."""
        stages = self.recipe.stages
        earlier = sum(stage.steps for stage in stages[:number])
        run_ended = ended and number + 1 == len(stages)
        full = self.recipe.record.keep_optimizer if run_ended else not ended
        bare = run_ended and not full
        kept = {n: p for n, p in self._stateful(stages[number]).items() if not (bare and n.startswith("streams."))}
        parts = {name: part.state() for name, part in kept.items()}
        state = {"stage": number, "step": step, "parts": parts, "models": self.folder.models, "full": full}
        write = functools.partial(self.components.trainer.save, weights_only=not full)
        keep = 0 if ended else self.recipe.record.keep
        return checkpoint.save(self.folder.checkpoints, earlier + step, write, state, keep=keep, mark=ended)


async def run_recipe(
    recipe: Recipe, folder: RunFolder, display: Display, *, resume: bool = False
) -> dict[str, Summary]:
    """Runs a recipe to its end in a run folder; `resume` goes on from its newest complete checkpoint.

    Stages and reward are copied first, as some have state, so that the same recipe can be run again.
    """
    recipe = replace(recipe, stages=copy.deepcopy(recipe.stages), reward=copy.deepcopy(recipe.reward))
    found = _checkpoint_to_resume(folder, display) if resume else None
    if resume:
        check_models(recipe, folder)
    jsonl = metrics.Jsonl(folder.path / "metrics.jsonl")
    if resume:
        _truncate_metrics(recipe, jsonl, found)
    sinks = metrics.Sinks([jsonl])
    try:
        for sink in recipe.record.sinks:
            sinks.add(sink.bind(folder.path, folder.config))
        async with assemble(recipe) as components:
            folder.write_json("models.json", identities(recipe))
            if isinstance(components.renderer, HasNote):
                folder.write_json(CHAT_FORMAT, components.renderer.note)
            if (known := pieces.of(components.renderer)) is not None:
                vocabulary.write(folder.path, known)
            with EpisodeStore(folder.path, write=True) as store:
                writer = EpisodeWriter(store, folder.blobs)
                run = Run(recipe, folder, display, components, writer, sinks)
                components.runner.on_episode = run.see
                components.runner.on_blobs = lambda blobs: writer.blobs.update(blobs)
                return await run.run(found)
    finally:
        sinks.close()


def _checkpoint_to_resume(folder: RunFolder, display: Display) -> Checkpoint | None:
    """Returns the checkpoint to resume from; newer ones that are damaged are reported in the terminal and recorded."""
    damaged: list[str] = []
    found = checkpoint.latest(folder.checkpoints, damaged.append)
    for sentence in damaged:
        display.message(sentence)
    if damaged:
        earlier = folder.read_json(SKIPPED_CHECKPOINTS, [])
        kept = [sentence for sentence in earlier if sentence not in damaged] if isinstance(earlier, list) else []
        folder.write_json(SKIPPED_CHECKPOINTS, [*kept, *damaged])
    return found


def _truncate_metrics(recipe: Recipe, jsonl: metrics.Jsonl, found: Checkpoint | None) -> None:
    """Removes the metrics that a killed run wrote after the checkpoint that it is resumed from."""
    position = found.state() if found is not None else {"stage": 0, "step": 0, "parts": {}}
    match position:
        case {"stage": int(number), "step": int(step), "parts": dict()} if 0 <= number < len(recipe.stages):
            jsonl.truncate(step, recipe.stages[number].name)
            for later in recipe.stages[number + 1 :]:
                jsonl.truncate(0, later.name)
        case _:
            raise RecordError(
                f"the state of {found and found.path} belongs to no step of the {len(recipe.stages)} stages of this "
                "run: restore its config.toml, or delete this checkpoint to go on from an earlier one"
            )
