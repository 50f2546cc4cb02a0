"""Summarises the episodes of an evaluation: success, reward, length and pass@k, overall, by world and by tag."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sojourn.intervals import NOTHING, Estimate, mean, pass_rate, proportion
from sojourn.search_cost import spent_tokens
from sojourn.types import Ending, Group, Score, Trajectory


@dataclass(frozen=True)
class TaskStatistics:
    """Holds the statistics of some tasks: `tokens` are the sampled ones per episode, those of searches included, and
    `malformed` is a fraction of turns."""

    tasks: int
    episodes: int
    success: Estimate
    reward: Estimate
    turns: Estimate
    tokens: Estimate
    malformed: Estimate
    pass_at: Mapping[int, Estimate] = field(default_factory=dict)


ESTIMATES = ("success", "reward", "turns", "tokens", "malformed")


@dataclass(frozen=True)
class Summary:
    """The numbers of an evaluation: overall, by world and by tag. `errors` episodes failed and are not in them;
    `full_contexts` of the others ended because their context was full. `measures` are what worlds measure of the policy
    as a whole (`MeasuresPolicy`), by name."""

    overall: TaskStatistics
    envs: Mapping[str, TaskStatistics]
    tags: Mapping[str, TaskStatistics]
    errors: int = 0
    full_contexts: int = 0
    measures: Mapping[str, float] = field(default_factory=dict[str, float])

    def to_json(self) -> dict[str, Any]:
        """Returns strict JSON, in which numbers that are not finite are null and the numbers k of pass@k are text."""
        return {
            "overall": _statistics_json(self.overall),
            "envs": {name: _statistics_json(statistics) for name, statistics in self.envs.items()},
            "tags": {name: _statistics_json(statistics) for name, statistics in self.tags.items()},
            "errors": self.errors,
            "full_contexts": self.full_contexts,
            "measures": dict(self.measures),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Summary:
        return cls(
            overall=_statistics_from(data["overall"]),
            envs={name: _statistics_from(statistics) for name, statistics in data["envs"].items()},
            tags={name: _statistics_from(statistics) for name, statistics in data["tags"].items()},
            errors=data["errors"],
            full_contexts=data.get("full_contexts", 0),  # runs of older versions did not count them
            measures={str(name): float(value) for name, value in data.get("measures", {}).items()},
        )


def measure_names(summaries: Iterable[Summary]) -> list[str]:
    """Returns the names of what worlds measured of the policy in any of these evaluations."""
    return sorted({name for summary in summaries for name in summary.measures})


class _Play(NamedTuple):
    episode: tuple[int, int]  # the numbers of its group and of its episode in that
    task: str
    env: str
    tags: tuple[str, ...]
    success: bool
    reward: float
    trajectory: Trajectory


def summarise(groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> Summary:
    """Summarises judged groups; every trainable trajectory of an episode without error counts as one play."""
    plays = [
        _Play((at, owner), group.task.id, group.task.env, group.task.tags, trajectory.success, score.total, trajectory)
        for at, (group, judged) in enumerate(zip(groups, scores, strict=True))
        for owner, trajectory, score in zip(group.owners, group.trajectories, judged, strict=True)
    ]
    errors = sum(episode.error is not None for group in groups for episode in group.episodes)
    envs: dict[str, list[_Play]] = defaultdict(list)
    tags: dict[str, list[_Play]] = defaultdict(list)
    for play in plays:
        envs[play.env].append(play)
        for tag in play.tags:
            tags[tag].append(play)
    return Summary(
        overall=_statistics(plays),
        envs={name: _statistics(envs[name]) for name in sorted(envs)},
        tags={name: _statistics(tags[name]) for name in sorted(tags)},
        errors=errors,
        full_contexts=len({play.episode for play in plays if play.trajectory.ending is Ending.TOKENS}),
    )


def _statistics(plays: Sequence[_Play]) -> TaskStatistics:
    tasks = [play.task for play in plays]
    turns = [(play.task, malformed) for play in plays for malformed in _malformed(play.trajectory)]
    count: Counter[str] = Counter(tasks)
    wins: Counter[str] = Counter(play.task for play in plays if play.success)
    by_task = [(count[task], wins[task]) for task in count]
    return TaskStatistics(
        tasks=len(count),
        episodes=len({play.episode for play in plays}),
        success=proportion([play.success for play in plays], tasks),
        reward=_mean_reward([play.reward for play in plays], tasks),
        turns=mean([len(play.trajectory.turns) for play in plays], tasks),
        tokens=mean([spent_tokens(play.trajectory.turns) for play in plays], tasks),
        malformed=proportion([malformed for _, malformed in turns], [task for task, _ in turns]),
        pass_at={k: pass_rate(by_task, k) for k in _pass_at_ks(by_task)},
    )


def _mean_reward(rewards: Sequence[float], tasks: Sequence[str]) -> Estimate:
    """Returns the mean reward with an interval that stays within the rewards: Wilson's where all are 0 or 1, else that
    of the mean, cut at the least and the greatest that were seen."""
    if set(rewards) <= {0.0, 1.0}:
        return proportion(rewards, tasks)
    estimate = mean(rewards, tasks)
    if len(set(tasks)) < 2:  # of which the interval is infinite, as nothing is known of other tasks
        return estimate
    return estimate._replace(low=max(estimate.low, min(rewards)), high=min(estimate.high, max(rewards)))


def _malformed(trajectory: Trajectory) -> list[bool]:
    return [turn.message is None or turn.info.get("malformed", 0.0) > 0 for turn in trajectory.turns]


def _pass_at_ks(by_task: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the k of pass@k: 1, 2, 4, ... up to the number of plays that at least half of the tasks have."""
    if not by_task:
        return []
    median = int(np.median([plays for plays, _ in by_task]))
    return [1 << power for power in range(median.bit_length()) if 1 << power <= median]


def _statistics_json(statistics: TaskStatistics) -> dict[str, Any]:
    return {
        "tasks": statistics.tasks,
        "episodes": statistics.episodes,
        **{name: _estimate_json(getattr(statistics, name)) for name in ESTIMATES},
        "pass_at": {str(k): _estimate_json(estimate) for k, estimate in statistics.pass_at.items()},
    }


def _statistics_from(data: Mapping[str, Any]) -> TaskStatistics:
    return TaskStatistics(
        tasks=data["tasks"],
        episodes=data["episodes"],
        **{name: _estimate(data[name]) for name in ESTIMATES},
        pass_at={int(k): _estimate(estimate) for k, estimate in data["pass_at"].items()},
    )


def _estimate_json(estimate: Estimate) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in estimate._asdict().items()}


def _estimate(data: Mapping[str, Any]) -> Estimate:
    if data["mean"] is None:
        return NOTHING
    low, high = data["low"], data["high"]
    return Estimate(data["mean"], -math.inf if low is None else low, math.inf if high is None else high, data["n"])
