"""Computes the results of a match: each operator's estimates with intervals, and paired differences by task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Group

from sojourn.arena.match import TaskResult
from sojourn.intervals import Estimate, mean
from sojourn.record.summary import Summary, TaskStatistics, summarise
from sojourn.terminal.clean import one_line
from sojourn.terminal.numbers import number
from sojourn.terminal.rows import Column, rows


@dataclass(frozen=True)
class Result:
    """The result of one operator. `tokens` and `seconds` are sums over its episodes; `failed` episodes count in nothing
    else."""

    name: str
    summary: Summary
    tokens: int
    seconds: float
    failed: int

    @property
    def overall(self) -> TaskStatistics:
        return self.summary.overall


class Difference(NamedTuple):
    """The paired differences of two operators on the tasks that both finished: means, and counts of tasks."""

    name: str
    against: str
    success: Estimate
    reward: Estimate
    better: int
    worse: int
    same: int


def match_results(names: Sequence[str], tasks: Sequence[TaskResult]) -> list[Result]:
    """Returns the result of each operator over all finished tasks."""
    return [_result(name, at, tasks) for at, name in enumerate(names)]


def _result(name: str, at: int, tasks: Sequence[TaskResult]) -> Result:
    groups = [task.groups[at] for task in tasks]
    episodes = [group.episodes[0] for group in groups]
    turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
    tokens = sum(len(turn.sample.tokens) or int(turn.info.get("tokens", 0)) for turn in turns)
    failed = sum(episode.error is not None for episode in episodes)
    seconds = sum(episode.seconds for episode in episodes)
    return Result(name, summarise(groups, [task.scores[at] for task in tasks]), tokens, seconds, failed)


def paired_differences(names: Sequence[str], tasks: Sequence[TaskResult]) -> list[Difference]:
    """Returns the differences of every pair of operators, the later named minus the earlier."""
    return [
        _difference(names[b], names[a], [task for task in tasks if task.scores[a] and task.scores[b]], a, b)
        for a in range(len(names))
        for b in range(a + 1, len(names))
    ]


def _difference(name: str, against: str, tasks: Sequence[TaskResult], a: int, b: int) -> Difference:
    successes = [
        (float(task.groups[b].trajectories[0].success), float(task.groups[a].trajectories[0].success)) for task in tasks
    ]
    rewards = [(task.scores[b][0].total, task.scores[a][0].total) for task in tasks]
    ours = [(success, reward) for (success, _), (reward, _) in zip(successes, rewards, strict=True)]
    theirs = [(success, reward) for (_, success), (_, reward) in zip(successes, rewards, strict=True)]
    better = sum(x > y for x, y in zip(ours, theirs, strict=True))
    same = sum(x == y for x, y in zip(ours, theirs, strict=True))
    return Difference(
        name, against, mean([x - y for x, y in successes]), mean([x - y for x, y in rewards]),
        better, len(tasks) - better - same, same,
    )  # fmt: skip


def result_table(results: Sequence[Result], width: int) -> Group:
    """Returns a table with the estimates of each operator, with 95% intervals of the success rate."""
    overall = [one.overall for one in results]
    figures = {
        "success": [one.success.percent if one.episodes else "-" for one in overall],
        "reward": [number(one.reward.mean) for one in overall],
        "turns": [number(one.turns.mean) for one in overall],
        "tokens": [f"{one.tokens:,}" if one.tokens else "-" for one in results],
        "s": [number(one.seconds) for one in results],
        "failed": [str(one.failed) for one in results],
    }
    return _table("operator", [one.name for one in results], figures, width)


def difference_table(results: Sequence[Difference], width: int) -> Group:
    """Returns a table of the paired differences with 95% intervals, and the numbers of better, equal and worse
    tasks."""
    bounded = [one.success._replace(low=max(one.success.low, -1.0), high=min(one.success.high, 1.0)) for one in results]
    figures = {
        "success": list(map(_signed, bounded)),
        "reward": [_signed(one.reward) for one in results],
        "better": [str(one.better) for one in results],
        "same": [str(one.same) for one in results],
        "worse": [str(one.worse) for one in results],
    }
    return _table("by task", [f"{one.name} - {one.against}" for one in results], figures, width)


def _table(heading: str, names: Sequence[str], figures: Mapping[str, Sequence[str]], width: int) -> Group:
    """Returns a table whose names are whole: on lines of their own where they leave no room for the figures."""
    columns = [Column(heading=name, cells=cells, right=True) for name, cells in figures.items()]
    return Group(*rows([Column(heading=heading, cells=list(map(one_line, names))), *columns], width))


def _signed(estimate: Estimate) -> str:
    if not estimate.n:
        return "-"
    if not math.isfinite(estimate.high):
        return f"{estimate.mean:+.2f}"
    return f"{estimate.mean:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}]"
