"""Live groups, started by slot: the lag is bounded exactly, and which groups a step trains never depends on timing."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from sojourn.config.fields import Range
from sojourn.errors import ConfigError, InfrastructureError, failure_and_place
from sojourn.rewards.reward_cache import judged
from sojourn.rollout.runner import SamplerFor
from sojourn.sources.context import SourceContext, StageContext
from sojourn.sources.slot_record import SlotRecord
from sojourn.types import Group, Score


@dataclass(frozen=True, kw_only=True)
class Slots:
    """`width` groups of `size` episodes per step, played by the policy. Slot k is the k-th group of the stage.

    Group k may start once training has reached step floor(k / width) - max_lag; step s trains the groups s * width to
    (s + 1) * width - 1. So `max_lag = 0` is strictly on-policy, and n lets rollout run ahead by at most n steps.
    `zero_signal` says what happens to a group without a signal: "keep" trains it, "drop" leaves it out, and "redraw"
    plays another task in the same slot until a group has a signal (dynamic sampling of DAPO: Yu et al. 2025,
    arXiv:2503.14476, section 3.2, eq. 11), so that a step trains `width` groups that have one. Which tasks a slot plays
    follows from its own groups alone, never from timing.

    A group has a signal if trajectories of the same seat differ by `signal`: those of different seats are not compared,
    as group-relative estimators do not either. "success" is the paper's rule, by which some of them succeed and some do
    not; where the world never reports success, their outcomes are compared. "outcome" compares the reward for the
    result, without penalties and shaping; "score" compares the whole reward.

    `max_redraws` bounds how often a slot plays another task, as some worlds never give a signal. The default, 29,
    allows 30 groups for each that is trained, as in the authors' script. `exhausted` says what becomes of the last:
    "drop" leaves it out, so that the step trains fewer groups; "keep" trains it; "stop" ends the run, as the authors'
    code does. The metrics `redrawn` and `exhausted` count the two per step.
    """

    width: Annotated[int, Range(1)] = 8
    size: Annotated[int, Range(1)] = 8
    max_lag: Annotated[int, Range(0)] = 0
    zero_signal: Literal["keep", "drop", "redraw"] = "keep"
    signal: Literal["success", "outcome", "score"] = "success"
    max_redraws: Annotated[int, Range(0)] = 29
    exhausted: Literal["drop", "keep", "stop"] = "drop"

    live = True

    def __post_init__(self) -> None:
        if self.zero_signal != "keep" and self.size == 1:
            raise ValueError(
                f'zero_signal = "{self.zero_signal}" with size = 1: a lone episode always scores like its group; '
                'use "keep", or a size of 2 or more'
            )

    def tasks(self, steps: int) -> int:
        """Returns how many tasks of the curriculum `steps` steps take, without redraws."""
        return self.width * steps

    async def check(self, stage: StageContext) -> None:
        if stage.params.truncates or stage.params.temperature == 0:
            raise ConfigError(
                f"sampling: stage '{stage.name}' needs the logprobs of the distribution that was sampled, so "
                "top_p = 1, top_k = 0, min_p = 0 and temperature > 0 (evaluation may use its own)"
            )

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> LiveSlots:
        """Returns the source of a stage: slot k plays the task that the curriculum draws for `first` + k, as the tasks
        before `first` belong to earlier stages."""
        return LiveSlots(self, context, stage, steps, first)


def has_zero_signal(group: Group, scores: Sequence[Score], signal: str = "score") -> bool:
    """Returns whether no two trajectories of the same seat differ by `Slots.signal`, so that a group has no signal."""
    reports_success = any("success" in turn.info for trajectory in group.trajectories for turn in trajectory.turns)
    if signal == "success" and reports_success:
        values = [float(trajectory.success) for trajectory in group.trajectories]
    else:
        values = [score.total if signal == "score" else score.result for score in scores]
    seats = [trajectory.agent for trajectory in group.trajectories]
    return len({(seat, float(np.float32(value))) for seat, value in zip(seats, values, strict=True)}) <= len(set(seats))


@dataclass
class LiveSlots:
    """The slots of one stage while it runs.

    Its state holds the samples of groups that are not trained yet: after a restart their episodes continue from there,
    and samples that the engine had not finished are drawn with the weights of the restart. With `max_lag = 0` there are
    none, and a resumed run is the same bit for bit; with `max_lag` above 0, the weights that a token is drawn with
    depend on timing.
    """

    config: Slots
    context: SourceContext
    stage: str
    steps: int
    first: int = 0
    _started: int = -1  # slots up to here have been started
    _running: dict[int, asyncio.Task[Group]] = field(default_factory=dict)
    _records: defaultdict[int, SlotRecord] = field(default_factory=lambda: defaultdict(SlotRecord))
    _counts: Counter[str] = field(default_factory=Counter)

    def state(self) -> Mapping[str, Any]:
        return {str(slot): record.state() for slot, record in self._records.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._records.update({int(slot): SlotRecord.of(record) for slot, record in state.items()})

    async def take(self, step: int) -> list[Group]:
        width = self.config.width
        self._started = max(self._started, step * width - 1)
        last = min((step + self.config.max_lag + 1) * width, self.steps * width)
        for slot in range(self._started + 1, last):
            self._running[slot] = asyncio.create_task(self._fill(slot), name=f"slot-{slot}")
        self._started = max(self._started, last - 1)
        tasks = {slot: self._running[slot] for slot in range(step * width, (step + 1) * width)}
        try:
            done = await asyncio.gather(*tasks.values())
        except BaseException:
            await self.close()
            raise
        done = await asyncio.gather(*(self._judged(group) for group in done))
        episodes = [episode for group in done for episode in group.episodes]
        if all(episode.error is not None for episode in episodes):
            raise InfrastructureError(
                f"all {len(episodes)} episodes of step {step} failed; the last cause: "
                f"{failure_and_place(episodes[-1].error, episodes[-1].traceback)}"
            )
        redrawn = sum(len(self._records[slot].tasks) - 1 for slot in tasks)
        for slot in tasks:
            del self._running[slot], self._records[slot]
        if self.config.zero_signal == "keep":
            return done
        with_signal = [group for group in done if not await self._has_zero_signal(group)]
        if self.config.zero_signal == "drop":
            return with_signal
        self._counts.update(redrawn=redrawn, exhausted=len(done) - len(with_signal))
        return done if self.config.exhausted == "keep" else with_signal

    def metrics(self) -> Mapping[str, float]:
        """Returns, since the last call, how many groups were redrawn and how many slots ended without a signal."""
        counts, self._counts = self._counts, Counter()
        return {name: float(count) for name, count in counts.items()}

    async def close(self) -> None:
        """Cancels the episodes that are still running."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()

    async def _fill(self, slot: int) -> Group:
        redraw, record, params = 0, self._records[slot], self.context.params
        while True:
            if redraw == len(record.tasks):
                record.tasks.append(self.context.curriculum.draw(self.first + slot, redraw))
            label = f"{self.stage}/{slot}/{redraw}"
            group = await self.context.runner.play_group(
                record.tasks[redraw], slot, self.config.size, params, label, sampler_for=self._recording(record)
            )
            if self.config.zero_signal == "redraw":
                group = await self._judged(group)
            if self.config.zero_signal != "redraw" or not await self._has_zero_signal(group):
                return group
            if redraw == self.config.max_redraws:
                return self._exhausted(group, redraw + 1)
            redraw += 1

    def _recording(self, record: SlotRecord) -> SamplerFor:
        return lambda env, label: record.sampler(self.context.runner.sampler, label)

    async def _judged(self, group: Group) -> Group:
        """Scores a group. Where the reward's server failed, its episodes are counted as failed, and returned so."""
        scored, _ = await judged(self.context.rewards.score, group)
        for before, episode in zip(group.episodes, scored.episodes, strict=True):
            if episode.error != before.error:
                self.context.runner.count(episode)
        return scored

    async def _has_zero_signal(self, group: Group) -> bool:
        return has_zero_signal(group, await self.context.rewards.score(group), self.config.signal)

    def _exhausted(self, group: Group, played: int) -> Group:
        """Returns the last group of a slot without a signal; raises `ConfigError` where that ends the run."""
        if self.config.exhausted == "stop":
            raise ConfigError(
                f"slot {group.slot} of stage '{self.stage}' played {played} tasks, and all episodes of each are equal "
                f'by signal = "{self.config.signal}": give it tasks that are solved sometimes, more episodes per task '
                '(size), or exhausted = "drop"'
            )
        return group
