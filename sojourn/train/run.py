"""Runs the stages of a recipe one after another, evaluates between them, records everything, and can resume."""

from __future__ import annotations

import copy
import functools
from asyncio import Event
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sojourn.abilities import (
    Observes,
    group_size,
    live_width,
    origin_of,
    parts_of,
    play_lag,
)
from sojourn.batch.weigh import weigh
from sojourn.display import Display
from sojourn.protocols import Source, Stateful
from sojourn.record import checkpoint, metrics
from sojourn.record.checkpoint import Checkpoint
from sojourn.record.diagnosis import LiveDiagnosis
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.run_weights import BEFORE, best_evaluation, mark_best
from sojourn.record.stopped import Stopped, record_stop, stopped_stages
from sojourn.record.summary import Summary
from sojourn.rewards.reward_cache import ALL_SLOTS
from sojourn.threads import run_to_end
from sojourn.train import early_stop, trained_models
from sojourn.train.assemble import Components, assemble
from sojourn.train.driver_load import recorded_parts
from sojourn.train.early_stop import Spent
from sojourn.train.episode_writer import EpisodeWriter
from sojourn.train.evaluate import evaluate, panel, show_recorded
from sojourn.train.group_checks import check_groups
from sojourn.train.loop import StageLoop, StepResult, train
from sojourn.train.lost_steps import forget_lost_steps
from sojourn.train.named_models import check_contexts, open_models
from sojourn.train.recipe import Recipe, Stage
from sojourn.train.releases import Releases, evaluation_name
from sojourn.train.repeats import why_skipped
from sojourn.train.resume import checkpoint_to_resume, truncate_metrics
from sojourn.train.run_facts import write_facts
from sojourn.train.seating import POLICY
from sojourn.train.stage_learners import StageLearners
from sojourn.train.step_metrics import drift, live_origin, metrics_of, step_metrics
from sojourn.train.trained_models import trained_by_all
from sojourn.train.weights import initial_weights, keep_initial, restore_initial
from sojourn.types import Episode, Group, Score


@dataclass
class StageRun:
    """Trains one stage of a run: records its steps, evaluates, and writes checkpoints when due."""

    run: Run
    number: int
    stage: Stage
    source: Source
    learners: StageLearners
    step: int = 0  # the one that is being made, under which a failure is recorded
    errors_before: int = 0  # failed episodes before the present step
    spent: Spent = field(default_factory=Spent)  # by the steps that are done

    @property
    def live(self) -> bool:
        """Returns whether the policy plays any groups of the stage."""
        return self.stage.groups.live

    @classmethod
    def begin(cls, run: Run, number: int, previous: StageRun | None) -> StageRun:
        """Begins the optimisers and the source of a stage, whose streams take over from those of the previous one."""
        stage, components = run.recipe.stages[number], run.components
        seen = sum(earlier.groups.tasks(earlier.steps) for earlier in run.recipe.stages[:number])
        components.source = source = stage.groups.bind(components, stage.name, stage.steps, seen)
        learners = StageLearners.of(stage, components, run.recipe.record)
        learners.begin()
        if previous is not None:
            previous.learners.hand_over(learners)
        begun = cls(run, number, stage, source, learners)
        components.seating.begin(stage.name, begun._steps_before, stage.groups)
        return begun

    async def train(self, resumed: Checkpoint | None) -> None:
        """Trains the steps that are not done yet and evaluates. Where an error ends the stage, what failed until then
        is recorded, and what was scored in its last step, unless the policy played it."""
        start = resumed.state()["step"] if resumed is not None else 0
        end = self._last_step(start)
        try:
            if resumed is not None:
                await self._resume(resumed, ended=start == end)
            await self._train(start, end)
        except Exception:
            unused = () if self.live else self.run.components.rewards.pop((), below=ALL_SLOTS)
            await self.run.writer.record_failures(self.stage.name, self.step, unused)
            raise

    async def _resume(self, resumed: Checkpoint, *, ended: bool) -> None:
        """Restores the weights and every component from a checkpoint of this stage, which may be that of its end."""
        trainers, states = self.run.components.trainers, resumed.state()["parts"]
        trained_models.load(trainers, resumed.weights, go_on=() if ended else self.learners.stages)
        for name, part in self._stateful().items():
            if not ended or name in states:
                what = f"'{name}' ({type(part).__name__}) in {resumed.path}"
                with checkpoint.restoring(what, f"the stage '{self.stage.name}'"):
                    part.restore(states[name])
        await trained_models.publish(trainers, again=True)
        if not ended:
            await self._go_back(resumed.state()["step"])

    async def _train(self, start: int, end: int) -> None:
        run, stage = self.run, self.stage
        forget_lost_steps(run.folder, run.writer.store, run.recipe, self.number, start)
        run.writer.origins[stage.name] = origin_of(parts_of(stage.groups)[0])
        self.step = start
        if start:
            self.spent = early_stop.spent(metrics.read(run.folder.path / "metrics.jsonl"), {stage.name})
        expected = sum(part.width * (group_size(part) or 0) for part in parts_of(stage.groups) if part.live)
        run.display.stage(stage.name, stage.steps, start=start, episodes=expected)
        loop = self._loop(start, end)
        self._reset_measurements()
        try:
            await train(loop)
        finally:
            await self.source.close()
            await run.writer.finish()
        run.components.rewards.clear()  # what was played ahead of an early stop is in no step
        run.components.asked.forget()
        run.writer.failed.clear()
        trained, end = start < end, self._last_step(self.step)
        if trained:
            await self._checkpoint(end, ended=True)
        if trained or not any(e["name"] == stage.name for e in run.folder.evaluations()):
            if stage.trains:
                await run.evaluate(stage.name, stage.name, end)
            else:
                run.folder.repeat_evaluation(stage.name, end)
        elif stage.trains:  # it is newer than the checkpoint of the stage's end
            show_recorded(stage.name, run.components.curriculum, run.writer.store)
        await self._go_back(end)
        if run.recipe.record.keep_best:  # also where a killed run had evaluated already
            mark_best(run.folder)
            checkpoint.prune(run.folder.checkpoints, self._steps_before + end, 0)  # what was the best until now

    def _last_step(self, done: int) -> int:
        """Returns after which step the stage ends, when `done` steps of it are done: after those, if a stop is recorded
        there, else after its last. A stop that is recorded at another step is of a part of the run that was lost, and
        is removed: the stage will stop there again."""
        stopped = stopped_stages(self.run.folder).get(self.stage.name)
        if stopped is not None and stopped.step == done:
            return done
        record_stop(self.run.folder, self.stage.name, None)
        return self.stage.steps

    def _loop(self, start: int, end: int) -> StageLoop:
        stage, components = self.stage, self.run.components
        return StageLoop(
            steps=end,
            start=start,
            source=self.source,
            rewards=components.rewards,
            learners=self.learners.learners(),
            observe=self._observe,
            on_step_end=self._end_step,
            slots_end=lambda step: (step + 1) * live_width(stage.groups) if self.live else ALL_SLOTS,
        )

    def _observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Tells the curriculum, and a source that keeps groups, what was played for a step."""
        self.run.components.curriculum.observe(groups, scores)
        self.run.components.seating.observe(self._steps_before + self.step + 1, groups)
        if isinstance(self.source, Observes):
            self.source.observe(groups, scores)

    def _stateful(self) -> dict[str, Stateful]:
        """Returns all stateful components, by the names under which a checkpoint stores them."""
        components = self.run.components
        parts = {"curriculum": components.curriculum, "reward": components.rewards.reward, "groups": self.source}
        parts |= self.learners.parts()
        parts |= {"seats": components.seating} if components.seating.pools else {}
        return {name: part for name, part in parts.items() if isinstance(part, Stateful)}

    async def _end_step(self, step: int, result: StepResult) -> bool:
        """Records a step; evaluates and checkpoints where due. Returns whether the stage ends here."""
        run, stage = self.run, self.stage
        await self._record(step, result)
        if not self.live:
            await run.writer.start_failed(stage.name, self.step)
        self.step = step + 1
        values = step_metrics(result, run.components, self.source, stage, errors_before=self.errors_before)
        if self.learners.measures_drift:
            count, origin = run.recipe.record.drift_groups, live_origin(stage.groups)
            values["drift"] = await drift(run.components.trainer, result.updates[POLICY].groups, step, count, origin)
        run.sinks.write(step, stage.name, values)
        run.display.step(step, values)
        await run.components.seating.end_step(self._steps_before + step + 1, run.components.trainer)
        self.spent = self.spent.more(values)
        every, within = run.recipe.evaluation.every, step + 1 < stage.steps
        evaluated = stage.trains and within and bool(every) and (step + 1) % every == 0
        best = evaluated and await run.evaluate(evaluation_name(stage.name, step + 1), stage.name, step + 1)
        if within and self._stops(step + 1, evaluated):
            return True
        if best or (within and (run.recipe.record.due(step + 1) or run.recipe.record.stays(step + 1))):
            await run.writer.finish()
            saved = await self._checkpoint(step + 1)
            if best:
                saved.mark_best()
        await self._go_back(step + 1)
        self._reset_measurements()  # what recording and evaluation took is not the next step's
        return False

    async def _go_back(self, step: int) -> None:
        """Continues from other weights, where that was decided when those of this step were refused."""
        if self.run.releases is not None and (found := self.run.releases.back_to(self.stage.name, step)) is not None:
            await self.learners.go_back(found)

    def _stops(self, step: int, evaluated: bool) -> bool:
        """Returns whether the stage ends early after a step; the reason is recorded and shown."""
        run, stage = self.run, self.stage
        results = early_stop.results(run.folder.evaluations(), stage.name, step) if evaluated else ()
        reason = stage.early_stop.reason(results, self.spent)
        if reason:
            record_stop(run.folder, stage.name, Stopped(step, reason))
            run.display.message(f"the stage '{stage.name}' ends after {step} of {stage.steps} steps: {reason}")
        return bool(reason)

    async def _record(self, step: int, result: StepResult) -> None:
        """Records the trained groups with their credit and streams, and all other episodes with their scores.

        Episodes that were not played live are recorded when they are first seen; later passes only name them.
        """
        known = set[str]()
        stages = self.learners.stages
        weights = {model: weigh(update.groups, stages[model].aggregate) for model, update in result.updates.items()}
        by_all = trained_by_all(result, weights)
        if not all(part.live for part in parts_of(self.stage.groups)):
            taken = [*by_all.groups, *(scored.group for scored in result.played)]
            await self.run.writer.finish()  # what it still writes is known, too
            known = self.run.writer.store.holds(self.stage.name, (e.id for g in taken for e in g.episodes))
        new = [n for n, group in enumerate(by_all.groups) if group.episodes[0].id not in known]
        trained: list[Any] = [[column[n] for n in new] for column in (by_all.groups, by_all.scores, by_all.credit)]
        reused = [group for group in by_all.groups if group.episodes[0].id in known]
        columns = {name: [values[n] for n in new] for name, values in by_all.streams.items()}
        done = known | {episode.id for group in by_all.groups for episode in group.episodes}
        rest = [s.select([n for n, e in enumerate(s.group.episodes) if e.id not in done]) for s in result.played]
        untrained = [scored for scored in rest if scored.group.episodes]
        others = [[scored.group for scored in untrained], [scored.scores for scored in untrained]]
        await self.run.writer.start(self.stage.name, step, [*trained, columns, reused], others)

    def _reset_measurements(self) -> None:
        """Begins to measure anew, so that evaluations and checkpoints are counted in no step."""
        components = self.run.components
        components.timeline.take()
        self.errors_before = components.runner.errors
        for measured in (components.sampler, components.asked):
            metrics_of(measured)

    @property
    def _steps_before(self) -> int:
        return sum(stage.steps for stage in self.run.recipe.stages[: self.number])

    async def _checkpoint(self, step: int, ended: bool = False) -> Checkpoint:
        """Writes a checkpoint, while plays go on. At the end of the stage, earlier ones are deleted, and it has no
        optimiser; after the last stage, it has either all of it or no state of streams either."""
        run, stages = self.run, self.run.recipe.stages
        run_ended = ended and self.number + 1 == len(stages)
        full = run.recipe.record.keep_optimizer if run_ended else not ended
        bare = run_ended and not full
        kept = {n: p for n, p in self._stateful().items() if not (bare and n.startswith("streams."))}
        parts = {name: copy.deepcopy(part.state()) for name, part in kept.items()}  # plays change it meanwhile
        state = {"stage": self.number, "step": step, "parts": parts, "models": run.folder.models, "full": full}
        go_on = self.learners.stages if full else ()
        write = functools.partial(trained_models.save, run.components.trainers, go_on=go_on)
        keep, mark = 0 if ended else run.recipe.record.keep, ended or run.recipe.record.stays(step)
        folder, step = run.folder.checkpoints, self._steps_before + step
        saved = await run_to_end(checkpoint.save, folder, step, write, state, keep=keep, mark=mark)
        run.components.seating.prune(saved.step)
        return saved


@dataclass(frozen=True)
class Run:
    """Runs the stages of a recipe one after another, and evaluates; everything is recorded in a run folder."""

    recipe: Recipe
    folder: RunFolder
    display: Display
    components: Components
    writer: EpisodeWriter
    sinks: metrics.Sinks
    releases: Releases | None = None  # to a service

    def see(self, episode: Episode) -> None:
        """Shows an episode that has ended, and keeps it to be recorded if it failed."""
        if episode.error is not None:
            self.writer.failed[episode.id] = episode
        self.display.episode(episode)

    async def run(self, resumed: Checkpoint | None) -> dict[str, Summary]:
        """Runs all stages that are not done yet, and returns every evaluation of the run by its name."""
        begun_at = resumed.state()["stage"] if resumed is not None else 0
        if resumed is None:
            runner = self.components.runner
            await check_groups(self.recipe, runner.renderer, runner.max_context, runner.family)
            await initial_weights(self.components)
            keep_initial(self.components, self.folder)
            await self.components.seating.begin_run(self.folder.path, self.components.trainer)
            await self.evaluate(BEFORE, BEFORE, 0)
        else:
            lag = play_lag(self.recipe.stages[begun_at].groups)
            await self.components.seating.resume(self.folder.path, resumed.step, lag)
        for earlier in self.folder.evaluations() if resumed is not None else ():
            self.display.recall(earlier["name"], Summary.from_json(earlier["summary"]))
        present: StageRun | None = None
        try:
            for number in range(begun_at, len(self.recipe.stages)):
                begun = resumed is not None and number == begun_at
                if not begun and self._skips(self.recipe.stages[number].name):
                    continue
                if not begun and number and self.recipe.stages[number].restart:
                    await restore_initial(self.components, self.folder)
                present = StageRun.begin(self, number, present)
                await present.train(resumed if begun else None)
        finally:
            if present is not None:
                present.learners.hand_over(None)
        return {e["name"]: Summary.from_json(e["summary"]) for e in self.folder.evaluations()}

    def _skips(self, stage: str) -> bool:
        """Returns whether no further round begins with this stage, or goes on with it; the reason is recorded."""
        reason = why_skipped(self.recipe.repeats, self.folder, stage)
        if reason:
            record_stop(self.folder, stage, Stopped(0, reason))
            self.folder.repeat_evaluation(stage, 0)
            self.display.message(f"the stage '{stage}' is left out: {reason}")
        return bool(reason)

    async def evaluate(self, name: str, stage: str, step: int) -> bool:
        """Plays the evaluation tasks, and returns whether these weights are the best and are to be kept. With `max_lag`
        above 0, rollouts of later steps use the engine meanwhile."""
        self.display.evaluating(name, len(panel(self.components)) * self.recipe.evaluation.samples)
        label = f"evaluation-{name}"
        await self.writer.finish()
        self.writer.store.truncate(label, 0)
        try:
            done = await evaluate(self.components, label)
        except Exception:
            await self.writer.record_failures(label, step)
            raise
        await self.writer.start(label, step, [done.groups, done.scores])
        await self.writer.finish()
        summary = done.summary()
        self.folder.add_evaluation(name, stage, step, summary)
        self.display.evaluation(name, summary)
        show_recorded(name, self.components.curriculum, self.writer.store)
        if self.releases is not None:
            self.display.message(self.releases.consider(name, step, summary, self.components.trainers))
        best = best_evaluation(self.folder)
        return self.recipe.record.keep_best and best is not None and best["name"] == name


async def run_recipe(
    recipe: Recipe, folder: RunFolder, display: Display, *, resume: bool = False, opened: Event | None = None
) -> dict[str, Summary]:
    """Runs a recipe to its end in a run folder; `resume` goes on from its newest complete checkpoint. `opened` is
    set when all that it needs is open. What has state, stages and reward, is copied first: a recipe can run again.
    """
    recipe = replace(recipe, stages=copy.deepcopy(recipe.stages), reward=copy.deepcopy(recipe.reward))
    found = checkpoint_to_resume(recipe, folder, display) if resume else None
    jsonl = metrics.Jsonl(folder.path / "metrics.jsonl")
    if resume:
        truncate_metrics(recipe, jsonl, found)
    sinks = metrics.Sinks([jsonl])
    releases = None if recipe.release is None else Releases.of(recipe.release, folder.path)
    try:
        for sink in recipe.record.sinks:
            sinks.add(sink.bind(folder.path, folder.config))
        async with assemble(recipe) as components:
            await open_models(recipe, components.trainer)
            check_contexts(recipe, components.trainer, components.renderer, components.runner.max_context)
            if opened is not None:
                opened.set()
            write_facts(folder, recipe, components.renderer)
            with EpisodeStore(folder.path, write=True) as store:
                components.answers.keep_in(folder.path)
                writer, components.episodes = EpisodeWriter(store, folder.blobs, asked=components.asked), store
                run = Run(recipe, folder, display, components, writer, sinks, releases)
                components.runner.on_episode = run.see
                sinks.add(LiveDiagnosis(store, display.message, list(metrics.read(jsonl.path))))
                components.runner.on_blobs = lambda blobs: writer.blobs.update(blobs)
                async with recorded_parts(folder.path, components, sinks, display.message):
                    return await run.run(found)
    finally:
        sinks.close()
        if releases is not None:
            releases.close()
