"""Live groups, started by slot: the lag is bounded exactly, and which groups a step trains never depends on timing."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from sojourn.abilities import GroupQueue, LooksAhead, asks_critic, env_needs, origin_of, since_now
from sojourn.branching.budget import mean_spent
from sojourn.branching.rule import Branching
from sojourn.branching.trees import play_trees
from sojourn.config.fields import Kind, Range
from sojourn.config.unused import refuse_unused
from sojourn.errors import ConfigError
from sojourn.finite import differ
from sojourn.rewards.reward_cache import scored_or_failed
from sojourn.rollout.runner import SamplerFor
from sojourn.schedules import Constant, Schedule
from sojourn.sources.context import SourceContext, StageContext, count_unjudged, require_imitation, require_played
from sojourn.sources.horizon import Budget, Horizon
from sojourn.sources.slot_record import SlotRecord
from sojourn.types import Group, SamplingParams, Score, Task

Signal = Literal["success", "outcome", "score"]  # what the trajectories of a seat are compared by
MASTERED = "mastered"  # in the state: how many steps reached the horizon's goal


@dataclass(frozen=True, kw_only=True)
class Slots:
    """`width` groups of `size` episodes per step, played by the policy. Slot k is the k-th group of the stage.

    Group k may start once training has reached step floor(k / width) - max_lag; step s trains the groups s * width to
    (s + 1) * width - 1. So `max_lag = 0` is strictly on-policy, and n lets rollout run ahead by at most n steps.
    `zero_signal` says what happens to a group without a signal: "keep" trains it, "drop" leaves it out, and "redraw"
    plays another task in the same slot until a group has a signal (dynamic sampling of DAPO: Yu et al. 2025,
    arXiv:2503.14476, section 3.2, eq. 11), so that a step trains `width` groups that have one. Which tasks a slot plays
    follows from its own groups alone, never from timing.

    A group has a signal if trajectories of the same seat differ by `signal`; only those of one seat are compared, as
    group-relative estimators do. "success" is the paper's rule, by which some of them succeed and some do
    not; where the world never reports success, their outcomes are compared. "outcome" compares the reward for the
    result, without penalties and shaping; "score" compares the whole reward. A group in which failures of the world or
    of the reward left no two trajectories of a seat is not redrawn, as that says nothing about its task.

    `max_redraws` bounds how often a slot plays another task, as some worlds never give a signal. The default, 29,
    allows 30 groups for each that is trained, as in the authors' script. `exhausted` says what becomes of the last:
    "drop" leaves it out, so that the step trains fewer groups; "keep" trains it; "stop" ends the run, as the authors'
    code does. With "redraw", the metrics `redrawn` and `exhausted` count, per step, the further
    tasks that were played and the slots that were left without a signal.

    Episodes may be short at first. `horizon` is a schedule of the fraction of `limits.turns` that the episodes of each
    step may take, and `token_horizon` of `sampling.max_tokens`; what is decided when a slot starts holds for all its
    episodes, and evaluations have the whole budget. With `{name = "stairs", factors = [0.33, 0.67, 1], every = 100}`
    the horizon grows as in ScalingInter-RL (Xi et al. 2025, arXiv:2509.08755, as in the authors' code). With a
    `horizon_goal` above 0 the schedules count only the steps in which at least that fraction of episodes succeeded. The
    metrics `horizon_turns` and `horizon_tokens` tell a step's budget.

    With a `branching` rule the `size` episodes are roots: they fork where the rule says, and every branch is an episode
    of the group, which shares the turns before its fork (`sojourn/branching/trees.py`). The metric `branches` counts
    them; `tree_tokens` and `tree_turns` are what a tree sampled and took in the mean, shared turns counted once.
    """

    width: Annotated[int, Range(1)] = 8
    size: Annotated[int, Range(1)] = 8
    max_lag: Annotated[int, Range(0)] = 0
    zero_signal: Literal["keep", "drop", "redraw"] = "keep"
    signal: Signal = "success"
    max_redraws: Annotated[int, Range(0)] = 29
    exhausted: Literal["drop", "keep", "stop"] = "drop"
    horizon: Annotated[Schedule, Kind("schedule")] = field(default_factory=Constant)
    token_horizon: Annotated[Schedule, Kind("schedule")] = field(default_factory=Constant)
    horizon_goal: Annotated[float, Range(0, 1)] = 0.0
    branching: Annotated[Branching | None, Kind("branching")] = None

    live = True

    def __post_init__(self) -> None:
        if self.zero_signal != "keep" and self.size == 1 and not self.forks:
            raise ValueError(
                f'zero_signal = "{self.zero_signal}" with size = 1: a lone episode always scores like its group; '
                'use "keep", or a size of 2 or more'
            )
        if self.zero_signal == "keep":
            refuse_unused(self, ["signal"], 'with zero_signal = "keep", which trains groups without one, too')
        if self.zero_signal != "redraw":
            keys = ["max_redraws", "exhausted"]
            refuse_unused(self, keys, f'with zero_signal = "{self.zero_signal}", which draws no task again')
        if self.horizon_goal and not self.grows:
            raise ValueError(
                f"horizon_goal = {self.horizon_goal:g} without a horizon that grows: say how, such as horizon = "
                '{name = "stairs", factors = [0.5, 1], every = 20}, or leave the goal out'
            )

    @property
    def forks(self) -> bool:
        return self.branching is not None

    @property
    def asks_critic(self) -> bool:
        return asks_critic(self.branching)

    @property
    def grows(self) -> bool:
        """Returns whether the budgets of episodes change over the stage."""
        return (self.horizon, self.token_horizon) != (Constant(), Constant())

    @property
    def signal_of_training(self) -> Signal:
        """Returns by what a group has a signal: by `signal` where that decides, by the score where all are trained."""
        return "score" if self.zero_signal == "keep" else self.signal

    def tasks(self, steps: int) -> int:
        """Returns how many tasks of the curriculum `steps` steps take, without redraws."""
        return self.width * steps

    async def check(self, stage: StageContext) -> None:
        if stage.params.truncates or stage.params.temperature == 0:
            raise ConfigError(
                f"sampling: stage '{stage.name}' needs the logprobs of the distribution that was sampled, so "
                "top_p = 1, top_k = 0, min_p = 0 and temperature > 0 (evaluation may use its own)"
            )
        for ability in sorted(env_needs(self.branching)):
            if without := await stage.plays.lacking(ability):
                raise ConfigError(
                    f"stage '{stage.name}': {type(self.branching).__name__} forks plays of environments with "
                    f"{ability}(), which {without} does not have: define it, or choose another branching rule"
                )
        if isinstance(stage.agent, LooksAhead) and stage.agent.unsampled:
            require_imitation(stage, f"the agent {type(stage.agent).__name__}, which says listed actions,", "policy")

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> LiveSlots:
        """Returns the source of a stage: slot k plays the task that the curriculum draws for `first` + k, as the tasks
        before `first` belong to earlier stages."""
        return LiveSlots(self, context, stage, steps, first)


def has_zero_signal(group: Group, scores: Sequence[Score], signal: Signal) -> bool:
    """Returns True if, within each seat, all trajectories of a group have the same value of `signal`."""
    reports_success = any("success" in turn.info for trajectory in group.trajectories for turn in trajectory.turns)
    if signal == "success" and reports_success:
        values = [float(trajectory.success) for trajectory in group.trajectories]
    else:
        values = [score.total if signal == "score" else score.result for score in scores]
    of_seat = defaultdict[str, list[float]](list)
    for trajectory, value in zip(group.trajectories, values, strict=True):
        of_seat[trajectory.agent].append(value)
    return not any(map(differ, of_seat.values()))


def lacks_comparison(group: Group) -> bool:
    """Returns whether episodes of a group failed, and left no two trajectories of the same seat to compare."""
    left = Counter(trajectory.agent for trajectory in group.trajectories)
    return any(episode.error is not None for episode in group.episodes) and max(left.values(), default=0) < 2


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
    _spent: dict[str, float] = field(default_factory=dict[str, float])  # by the trees of the newest step, in the mean
    _budget: Budget = field(init=False)  # of the newest step
    _horizon: Horizon = field(init=False)

    def __post_init__(self) -> None:
        config, limits = self.config, self.context.runner.config.limits
        self._budget = full = Budget(limits.turns, self.context.params.max_tokens)
        self._horizon = Horizon(config.horizon, config.token_horizon, config.horizon_goal, full, self.steps)

    def state(self) -> Mapping[str, Any]:
        records = {str(slot): record.state() for slot, record in self._records.items()}
        return records | ({MASTERED: self._horizon.mastered} if self._horizon.mastered else {})

    def restore(self, state: Mapping[str, Any]) -> None:
        self._horizon.mastered = state.get(MASTERED, 0)
        self._records.update({int(slot): SlotRecord.of(state[slot]) for slot in state if slot != MASTERED})

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        self._horizon.observe(groups, origin_of(self.config))

    async def take(self, step: int) -> list[Group]:
        width = self.config.width
        self._started = max(self._started, step * width - 1)
        last = min((step + self.config.max_lag + 1) * width, self.steps * width)
        for slot in range(self._started + 1, last):
            record = self._records[slot]
            record.budget = record.budget or self._horizon.budget(slot // width)
            self._running[slot] = asyncio.create_task(self._fill(slot), name=f"slot-{slot}")
        self._started = max(self._started, last - 1)
        tasks = {slot: self._running[slot] for slot in range(step * width, (step + 1) * width)}
        try:
            done = await asyncio.gather(*tasks.values())
        except BaseException:
            await self.close()
            raise
        done = await asyncio.gather(*(self._judged(group) for group in done))
        require_played(done, step)
        self._budget = self._records[step * width].budget or self._budget
        redrawn = sum(len(self._records[slot].tasks) - 1 for slot in tasks)
        if self.config.forks:
            self._counts.update(branches=sum(e.branch is not None for group in done for e in group.episodes))
        if self.config.branching is not None:
            means = np.mean([mean_spent(group) for group in done], axis=0)
            self._spent = {"tree_tokens": float(means[0]), "tree_turns": float(means[1])}
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
        """Returns, since the last call, how many groups were redrawn, how many slots ended without a signal, and, with
        a branching rule, how many plays were branches, and what trees have spent."""
        counts, self._counts = self._counts, Counter()
        grown = zip(("horizon_turns", "horizon_tokens"), self._budget, strict=True) if self.config.grows else ()
        return {name: float(count) for name, count in (*counts.items(), *grown, *self._spent.items())}

    def queue(self) -> GroupQueue:
        """Returns how many groups are played, and how many wait for their step."""
        complete = sum(task.done() for task in self._running.values())
        return GroupQueue(len(self._running) - complete, complete)

    async def close(self) -> None:
        """Cancels the episodes that are still running."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()

    async def _fill(self, slot: int) -> Group:
        redraw, record = 0, self._records[slot]
        _, max_tokens = record.budget or self._budget
        params, size_of = replace(self.context.params, max_tokens=max_tokens), self._size_of()
        while True:
            if redraw == len(record.tasks):
                record.tasks.append(self.context.curriculum.draw(self.first + slot, redraw))
            if redraw == len(record.sizes):
                record.sizes.append(size_of(record.tasks[redraw]))
            label = f"{self.stage}/{slot}/{redraw}"
            group = await self._play(record, slot, redraw, params, label)
            if self.config.zero_signal == "redraw":
                group = await self._judged(group)
            if self.config.zero_signal != "redraw" or lacks_comparison(group) or not await self._has_zero_signal(group):
                return group
            if redraw == self.config.max_redraws:
                return self._exhausted(group, redraw + 1)
            redraw += 1

    async def _play(self, record: SlotRecord, slot: int, redraw: int, params: SamplingParams, label: str) -> Group:
        """Plays the task that a slot drew as its `redraw`-th."""
        play, rule = self.context.runner.play_group, self.config.branching
        if rule is not None:
            play = partial(play_trees, self.context.runner, rule)
        task, size = record.tasks[redraw], record.sizes[redraw]
        return await play(task, slot, size, params, label, sampler_for=self._recording(record))

    def _size_of(self) -> Callable[[Task], int]:
        """Returns what says, for a slot that begins now, how many episodes a task is played."""
        return lambda task: self.config.size

    def _recording(self, record: SlotRecord) -> SamplerFor:
        """Returns what records the samples of a task's plays. They need no newer weights than there are now, as a slot
        starts only once the lag is kept."""
        engine = since_now(self.context.runner.sampler)
        return lambda env, label: record.sampler(engine, label)

    async def _judged(self, group: Group) -> Group:
        """Scores a group. Where the reward's server failed, its episodes are counted as failed, and returned so."""
        scored, _ = await scored_or_failed(self.context.rewards.score, group)
        count_unjudged(self.context.runner, group, scored)
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
