"""What a match found: each operator's numbers with intervals, and how they differ task by task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.table import Table

from sojourn.arena.match import Bout
from sojourn.intervals import Estimate, mean
from sojourn.record.summary import Part, Summary, summarise
from sojourn.terminal.numbers import number


@dataclass(frozen=True)
class Result:
    """One operator's. `tokens` and `seconds` are sums over its episodes; `failed` ones count in nothing else."""

    name: str
    summary: Summary
    tokens: int
    seconds: float
    failed: int

    @property
    def overall(self) -> Part:
        return self.summary.overall


class Difference(NamedTuple):
    """One operator against another on the tasks that both played: means of pairs, and on how many each did better."""

    name: str
    against: str
    success: Estimate
    reward: Estimate
    better: int
    worse: int
    same: int


def results(names: Sequence[str], bouts: Sequence[Bout]) -> list[Result]:
    return [_result(name, at, bouts) for at, name in enumerate(names)]


def _result(name: str, at: int, bouts: Sequence[Bout]) -> Result:
    groups = [bout.groups[at] for bout in bouts]
    episodes = [group.episodes[0] for group in groups]
    turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
    tokens = sum(len(turn.sample.tokens) or int(turn.info.get("tokens", 0)) for turn in turns)
    failed = sum(episode.error is not None for episode in episodes)
    seconds = sum(episode.seconds for episode in episodes)
    return Result(name, summarise(groups, [bout.scores[at] for bout in bouts]), tokens, seconds, failed)


def differences(names: Sequence[str], bouts: Sequence[Bout]) -> list[Difference]:
    """Of every pair, the later named against the earlier."""
    return [
        _difference(names[b], names[a], [bout for bout in bouts if bout.scores[a] and bout.scores[b]], a, b)
        for a in range(len(names))
        for b in range(a + 1, len(names))
    ]


def _difference(name: str, against: str, bouts: Sequence[Bout], a: int, b: int) -> Difference:
    won = [
        (float(bout.groups[b].trajectories[0].success), float(bout.groups[a].trajectories[0].success)) for bout in bouts
    ]
    paid = [(bout.scores[b][0].total, bout.scores[a][0].total) for bout in bouts]
    ranks = [(success, reward) for (success, _), (reward, _) in zip(won, paid, strict=True)]
    others = [(success, reward) for (_, success), (_, reward) in zip(won, paid, strict=True)]
    better = sum(mine > theirs for mine, theirs in zip(ranks, others, strict=True))
    same = sum(mine == theirs for mine, theirs in zip(ranks, others, strict=True))
    return Difference(
        name, against, mean([x - y for x, y in won]), mean([x - y for x, y in paid]),
        better, len(bouts) - better - same, same,
    )  # fmt: skip


def table(found: Sequence[Result]) -> Table:
    made = Table("operator", box=None, pad_edge=False, padding=(0, 2, 0, 0), title="", header_style="bold")
    for column in ("success", "reward", "turns", "tokens", "s", "failed"):
        made.add_column(column, justify="right", no_wrap=True)
    for one in found:
        part = one.overall
        made.add_row(
            one.name, part.success.percent if part.episodes else "-", number(part.reward.mean),
            number(part.turns.mean), f"{one.tokens:,}" if one.tokens else "-", number(one.seconds), str(one.failed),
        )  # fmt: skip
    return made


def pairs(found: Sequence[Difference]) -> Table:
    """The differences by task, with 95% intervals, and on how many tasks one did better, alike and worse."""
    made = Table("by task", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("success", "reward", "better", "same", "worse"):
        made.add_column(column, justify="right", no_wrap=True)
    for one in found:
        counts = map(str, (one.better, one.same, one.worse))
        success = one.success._replace(low=max(one.success.low, -1.0), high=min(one.success.high, 1.0))
        made.add_row(f"{one.name} - {one.against}", _signed(success), _signed(one.reward), *counts)
    return made


def _signed(estimate: Estimate) -> str:
    if not estimate.n:
        return "-"
    if not math.isfinite(estimate.high):
        return f"{estimate.mean:+.2f}"
    return f"{estimate.mean:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}]"
