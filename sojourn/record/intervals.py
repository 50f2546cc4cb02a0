"""What a set of judged episodes says, with 95% intervals that know that plays of one task are not independent.

Standard errors are clustered by task (Miller 2024, arXiv:2411.00640, section 2.2) with t quantiles of tasks - 1
degrees of freedom. An interval is about tasks like these, not about this panel alone. Proportions use Wilson's score
interval (1927) with the effective number of plays; pass@k is Chen et al. 2021 (arXiv:2107.03374, eq. 1).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sojourn.types import Group, Score, Trajectory

if TYPE_CHECKING:
    from rich.table import Table

Z = 1.959963984540054  # two-sided 95% of the normal distribution
T_SMALL = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764}


class Estimate(NamedTuple):
    """A mean, its 95% interval, and how many observations (for pass@k: tasks) it is of."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"

    @property
    def percent(self) -> str:
        return f"{100 * self.mean:.0f}% [{100 * self.low:.0f}–{100 * self.high:.0f}]"


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


def t_quantile(freedom: int) -> float:
    """The two-sided 95% quantile of Student's t: exact to four digits up to 4, then Fisher and Cornish (1960)."""
    if freedom < 1:
        return math.inf
    if freedom in T_SMALL:
        return T_SMALL[freedom]
    z, n = Z, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


def wilson(successes: float, n: float) -> Estimate:
    """Wilson's score interval of a proportion; `n` may be an effective number of plays."""
    if n <= 0:
        return NOTHING
    share = successes / n
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return Estimate(share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)), round(n))


def mean(values: Sequence[float], tasks: Sequence[Hashable] | None = None) -> Estimate:
    """The mean with a t interval, clustered where `tasks` names the task of each value; infinite for a single task."""
    x = np.asarray(values, dtype=np.float64)
    if not len(x):
        return NOTHING
    variance, clusters = _variance(x, tasks)
    centre = float(x.mean())
    half = t_quantile(clusters - 1) * math.sqrt(variance) if clusters > 1 else math.inf
    return Estimate(centre, centre - half, centre + half, len(x))


def proportion(outcomes: Sequence[bool] | Sequence[float], tasks: Sequence[Hashable] | None = None) -> Estimate:
    """A success rate: Wilson's interval, with as many plays as would be worth the clustered ones if independent.

    The effective number (Korn and Graubard 1998) is n over the design effect, corrected for few tasks, never above n.
    Where all outcomes agree the design effect is unknown, and every task counts once.
    """
    x = np.asarray(outcomes, dtype=np.float64)
    if not len(x):
        return NOTHING
    share, n = float(x.mean()), len(x)
    variance, clusters = _variance(x, tasks)
    if clusters == n:
        effective = float(n)
    elif share in (0.0, 1.0) or clusters == 1:
        effective = float(clusters)
    else:
        worth = min(n, share * (1 - share) / variance) if variance > 0 else n
        effective = max(1.0, worth * (Z / t_quantile(clusters - 1)) ** 2)
    found = wilson(share * effective, effective)
    return Estimate(share, found.low, found.high, n)


def pass_at_k(plays: int, successes: int, k: int) -> float:
    """The chance that k of the plays, drawn without replacement, hold a success (Chen et al. 2021, eq. 1)."""
    if not 1 <= k <= plays:
        raise ValueError(f"pass@{k} of {plays} plays: expected 1 <= k <= plays; play each task at least {k} times")
    return 1.0 - math.comb(plays - successes, k) / math.comb(plays, k)


def pass_rate(by_task: Sequence[tuple[int, int]], k: int, *, resamples: int = 1000, seed: int = 0) -> Estimate:
    """Mean pass@k over tasks of (plays, successes), with a percentile bootstrap over tasks.

    Tasks with fewer than k plays are left out, and `n` says how many were not. Where all tasks agree on 0 or 1 the
    bootstrap has no width, so Wilson's interval over the tasks stands in.
    """
    values = np.array([pass_at_k(plays, successes, k) for plays, successes in by_task if plays >= k])
    if not len(values):
        return NOTHING
    if np.all(values == values[0]) and values[0] in (0.0, 1.0):
        return wilson(float(values.sum()), len(values))
    draws = np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return Estimate(float(values.mean()), float(low), float(high), len(values))


@dataclass(frozen=True)
class Part:
    """The numbers of some of the tasks. `tokens` are those sampled in an episode; `malformed` is a share of turns."""

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
    """What an evaluation found: overall, by world and by tag; `errors` episodes failed and are not counted."""

    overall: Part
    envs: Mapping[str, Part]
    tags: Mapping[str, Part]
    errors: int = 0

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: what is not finite is null, and the numbers k are text."""
        return {
            "overall": _part_json(self.overall),
            "envs": {name: _part_json(part) for name, part in self.envs.items()},
            "tags": {name: _part_json(part) for name, part in self.tags.items()},
            "errors": self.errors,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Summary:
        return cls(
            overall=_part_from(data["overall"]),
            envs={name: _part_from(part) for name, part in data["envs"].items()},
            tags={name: _part_from(part) for name, part in data["tags"].items()},
            errors=data["errors"],
        )


class _Play(NamedTuple):
    task: str
    env: str
    tags: tuple[str, ...]
    success: bool
    reward: float
    trajectory: Trajectory


def summarise(groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> Summary:
    """The numbers of judged groups; every trainable trajectory of an episode without error counts as one play."""
    plays = [
        _Play(group.task.id, group.task.env, group.task.tags, trajectory.success, score.total, trajectory)
        for group, judged in zip(groups, scores, strict=True)
        for trajectory, score in zip(group.trajectories, judged, strict=True)
    ]
    errors = sum(episode.error is not None for group in groups for episode in group.episodes)
    envs: dict[str, list[_Play]] = defaultdict(list)
    tags: dict[str, list[_Play]] = defaultdict(list)
    for play in plays:
        envs[play.env].append(play)
        for tag in play.tags:
            tags[tag].append(play)
    return Summary(
        overall=_part(plays),
        envs={name: _part(envs[name]) for name in sorted(envs)},
        tags={name: _part(tags[name]) for name in sorted(tags)},
        errors=errors,
    )


def table(summaries: Mapping[str, Summary], title: str = "", *, brief: bool = False) -> Table:
    """A table for the terminal: one column per stage, overall numbers first, then success by world and by tag.

    `brief` leaves success, pass@k and reward.
    """
    from rich import box
    from rich.table import Table

    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    made.add_column("95% intervals")
    for name in summaries:
        made.add_column(name, justify="right")
    found = list(summaries.values())
    for label, cells in _overall_rows([summary.overall for summary in found], brief):
        made.add_row(label, *cells)
    if brief:
        return made
    if any(summary.errors for summary in found):
        made.add_row("errors", *(str(summary.errors) for summary in found))
    for parts in ([summary.envs for summary in found], [summary.tags for summary in found]):
        names = sorted({name for part in parts for name in part})
        if len(names) > 1:
            made.add_section()
            for name in names:
                made.add_row(name, *(part[name].success.percent if name in part else "" for part in parts))
    return made


def _overall_rows(parts: Sequence[Part], brief: bool) -> list[tuple[str, list[str]]]:
    ks = sorted({k for part in parts for k in part.pass_at if k > 1})
    rows = [
        ("success", [part.success.percent for part in parts]),
        *((f"pass@{k}", [part.pass_at[k].percent if k in part.pass_at else "" for part in parts]) for k in ks),
        ("reward", [_plus_minus(part.reward) for part in parts]),
    ]
    if brief:
        return rows
    return [
        *rows,
        ("turns", [_plus_minus(part.turns) for part in parts]),
        ("tokens", [_plus_minus(part.tokens) for part in parts]),
        ("malformed turns", [part.malformed.percent for part in parts]),
        ("tasks / episodes", [f"{part.tasks} / {part.episodes}" for part in parts]),
    ]


def _plus_minus(estimate: Estimate) -> str:
    return f"{estimate.mean:.3g} ± {estimate.high - estimate.mean:.2g}"


def _part(plays: Sequence[_Play]) -> Part:
    tasks = [play.task for play in plays]
    turns = [(play.task, malformed) for play in plays for malformed in _malformed(play.trajectory)]
    count: Counter[str] = Counter(tasks)
    wins: Counter[str] = Counter(play.task for play in plays if play.success)
    by_task = [(count[task], wins[task]) for task in count]
    return Part(
        tasks=len(count),
        episodes=len(plays),
        success=proportion([play.success for play in plays], tasks),
        reward=mean([play.reward for play in plays], tasks),
        turns=mean([len(play.trajectory.turns) for play in plays], tasks),
        tokens=mean([sum(len(turn.sample.tokens) for turn in play.trajectory.turns) for play in plays], tasks),
        malformed=proportion([malformed for _, malformed in turns], [task for task, _ in turns]),
        pass_at={k: pass_rate(by_task, k) for k in _ks(by_task)},
    )


def _malformed(trajectory: Trajectory) -> list[bool]:
    return [turn.message is None or turn.info.get("malformed", 0.0) > 0 for turn in trajectory.turns]


def _ks(by_task: Sequence[tuple[int, int]]) -> list[int]:
    """1, 2, 4, ... as long as at least half of the tasks were played that often."""
    if not by_task:
        return []
    most = int(np.median([plays for plays, _ in by_task]))
    return [1 << power for power in range(most.bit_length()) if 1 << power <= most]


def _variance(x: np.ndarray[Any, Any], tasks: Sequence[Hashable] | None) -> tuple[float, int]:
    """The variance of the mean of x (N,), clustered with the usual G / (G - 1), and the number of clusters G."""
    names = range(len(x)) if tasks is None else tasks
    sums: dict[Hashable, float] = defaultdict(float)
    for name, residual in zip(names, x - x.mean(), strict=True):
        sums[name] += float(residual)
    clusters = len(sums)
    if clusters < 2:
        return 0.0, clusters
    total = sum(value**2 for value in sums.values())
    return clusters / (clusters - 1) * total / len(x) ** 2, clusters


def _part_json(part: Part) -> dict[str, Any]:
    return {
        "tasks": part.tasks,
        "episodes": part.episodes,
        **{name: _estimate_json(getattr(part, name)) for name in ESTIMATES},
        "pass_at": {str(k): _estimate_json(estimate) for k, estimate in part.pass_at.items()},
    }


def _part_from(data: Mapping[str, Any]) -> Part:
    return Part(
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
