"""Groups that the policy played earlier in the run, read from its records, to be trained on again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sojourn.config.fields import NONBLANK, Range
from sojourn.curricula.weighted import weighted_sample
from sojourn.errors import ConfigError, RecordError
from sojourn.finite import differ
from sojourn.record.episodes.group import GroupRecord
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext, require_imitation, require_policy_plays
from sojourn.sources.live import Live
from sojourn.sources.recorded import YOUNGEST, entries_of, entries_state, label_number, recorded_group
from sojourn.types import Group, Score

Priority = Literal["uniform", "recent", "success", "rare", "signal"]
ENTRY = np.dtype(
    [
        ("step", "i4"), ("slot", "i4"), ("task", "u8"), ("success", "f4"), ("spread", "f4"), ("world", "u4"),
        ("label", "u4"),
    ]
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Replay:
    """`width` groups per step of those that the policy played in earlier steps of the stage, chosen anew in each step.

    A group keeps its rewards, its tokens and the log-probabilities of the weights that sampled it, so that a loss with
    importance ratios corrects for the weights that have changed since. Groups that are older than `max_age` steps are
    not replayed (0: of any age), nor are those of the last step, which are still being written. Only groups in which
    some episode succeeded are kept with `success_only`, only those whose rewards differ with `signal_only`.

    `priority` says which are likelier: "uniform" none; "recent" newer ones, with a probability that halves every
    `half_life` steps; "success" those in proportion to their success rate; "rare" those of tasks that were seldom
    solved, in proportion to one less the success rate; "signal" those whose rewards differ more, in proportion to their
    standard deviation. With `by_world` these hold within each world, and the worlds are all as likely, however many
    groups each has. A step replays none of them twice. `origins` says whose groups are kept: those of the policy, or
    of other sources of the stage, such as "dagger", whose turns were not sampled and are imitated. Sessions of a
    live service ("live") that were removed from the records are replayed no more.

    The run's own records are the buffer, so that it needs no memory of its own but 32 bytes for each of the last
    `capacity` groups. Until `min_groups` are there, a step replays none.
    """

    width: Annotated[int, Range(0)] = 2
    capacity: Annotated[int, Range(1, 1 << 24)] = 1 << 16
    min_groups: Annotated[int, Range(1)] = 1
    max_age: Annotated[int, Range(0)] = 0
    priority: Priority = "uniform"
    half_life: Annotated[float, Range(above=0)] = 10.0
    success_only: bool = False
    signal_only: bool = True
    by_world: bool = False
    origins: tuple[Annotated[str, NONBLANK], ...] = ("policy",)

    live = False
    origin = "replay"

    def tasks(self, steps: int) -> int:
        return 0

    async def check(self, stage: StageContext) -> None:
        if self.origins != ("policy",):
            require_imitation(stage, f"what is replayed of {' and '.join(self.origins)}", self.origin)
        elif not stage.groups.live:
            raise ConfigError(
                f"stage '{stage.name}': replay has nothing to give where the policy plays no groups: mix it with live "
                "ones, such as groups = {name = 'mixed', parts = [{name = 'slots'}, {name = 'replay'}]}"
            )
        else:
            require_policy_plays(stage, "replay", Replay)

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> ReplayBuffer:
        return ReplayBuffer(self, context, stage)


@dataclass
class ReplayBuffer:
    """The groups of one stage that may be replayed: where each is recorded, and how it ended."""

    config: Replay
    context: SourceContext
    stage: str
    entries: NDArray[Any] = field(default_factory=lambda: np.zeros(0, ENTRY))
    step: int = 0  # the present one
    _ages: list[int] = field(default_factory=list[int])

    recalls = True

    async def take(self, step: int) -> list[Group]:
        """Returns the groups of a step, whose rewards are known already."""
        self.step = step
        self._forget_removed()
        if self.config.width == 0 or len(self.entries) < self.config.min_groups:
            return []
        weights = self._weights()
        rng = np.random.default_rng(seed_of(self.context.runner.seed, self.stage, "replay", step))
        chosen = self.entries[weighted_sample(rng, weights, self.config.width)]
        records = [record for entry in chosen if (record := self._read(entry)) is not None]
        for record in records:
            self.context.rewards.remember(record.group, record.scores)
        self._ages += [step - record.step for record in records]
        return [record.group for record in records]

    async def close(self) -> None:
        """Does nothing: nothing is open."""

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Adds what was played in the present step, and drops the oldest groups where there is no more room."""
        kept = [
            _entry(self.step, group, judged)
            for group, judged in zip(groups, scores, strict=True)
            if group.origin in self.config.origins and judged and self._wanted(group, judged)
        ]
        self.entries = np.concatenate([self.entries, np.array(kept, ENTRY)])[-self.config.capacity :]

    def metrics(self) -> Mapping[str, float]:
        """Returns how many groups were replayed since the last call, and their mean age in steps."""
        ages, self._ages = self._ages, []
        return {"replayed": float(len(ages))} | ({"replay_age": float(np.mean(ages))} if ages else {})

    def state(self) -> Mapping[str, Any]:
        return entries_state(self.entries)

    def restore(self, state: Mapping[str, Any]) -> None:
        self.entries = entries_of(state, ENTRY)  # an older run knows no worlds

    def _forget_removed(self) -> None:
        """Drops the sessions of a live service that were removed from the records; all else is expected there."""
        if Live.origin not in self.config.origins or not len(self.entries):
            return
        statement = "SELECT DISTINCT step, slot, task FROM episodes WHERE stage = ?"
        there = set(self.context.episodes.rows(statement, (self.stage,), tuple))
        places = zip(self.entries["step"].tolist(), self.entries["slot"].tolist(), self.entries["task"], strict=True)
        kept = [
            self.step - step < YOUNGEST or (step, slot, f"{int(task):016x}") in there for step, slot, task in places
        ]
        self.entries = self.entries[np.array(kept, dtype=bool)]

    def _wanted(self, group: Group, scores: Sequence[Score]) -> bool:
        solved = any(trajectory.success for trajectory in group.trajectories)
        signal = not self.config.signal_only or differ([score.total for score in scores])
        return signal and (solved or not self.config.success_only)

    def _weights(self) -> NDArray[np.float64]:
        """Returns how likely each group is to be chosen, 0 where it may not be: (n,)."""
        age = self.step - self.entries["step"].astype(np.float64)
        allowed = (age >= YOUNGEST) & ((age <= self.config.max_age) if self.config.max_age else True)
        by_priority = {
            "uniform": np.ones(len(age)),
            "recent": 0.5 ** (age / self.config.half_life),
            "success": self.entries["success"],
            "rare": 1 - self.entries["success"],
            "signal": self.entries["spread"],
        }
        weights = np.where(allowed, by_priority[self.config.priority], 0.0)
        return _balanced(weights, self.entries["world"]) if self.config.by_world else weights

    def _read(self, entry: Any) -> GroupRecord | None:
        """Returns a recorded group; None for a session of a live service that is removed meanwhile."""
        try:
            record = recorded_group(self.context.episodes, self.stage, int(entry["step"]), entry)
        except RecordError:
            if Live.origin in self.config.origins:
                return None
            raise
        return replace(record, group=replace(record.group, origin=Replay.origin))


def _entry(step: int, group: Group, scores: Sequence[Score]) -> tuple[Any, ...]:
    success = float(np.mean([trajectory.success for trajectory in group.trajectories]))
    spread = float(np.std([score.total for score in scores]))
    world, label = crc32(group.task.env.encode()), label_number(group.episodes[0].id)
    return step, group.slot, int(group.task.id, 16), success, spread, world, label


def _balanced(weights: NDArray[np.float64], worlds: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Returns the weights (n,) scaled so that those of each world sum to 1, where any is above 0."""
    _, numbers = np.unique(worlds, return_inverse=True)
    totals = np.bincount(numbers, weights)[numbers]
    return np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)
