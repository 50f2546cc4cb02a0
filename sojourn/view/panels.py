"""Two plays of the same panel of tasks, task by task: what was gained, what was lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sojourn.intervals import Estimate, mean, proportion
from sojourn.record.episodes.episode_row import EpisodeRow


class Change(NamedTuple):
    """One task in both: its success rate before and after, and an episode of each."""

    task: str
    about: str
    before: float
    after: float
    first: EpisodeRow
    second: EpisodeRow


@dataclass(frozen=True)
class Comparison:
    """`before`, `after`: success on the tasks that both played; `difference` is of pairs, by task."""

    before: Estimate
    after: Estimate
    difference: Estimate
    gained: tuple[Change, ...]
    lost: tuple[Change, ...]
    same: int
    apart: int  # tasks that only one of them played


def compare(first: Iterable[EpisodeRow], second: Iterable[EpisodeRow]) -> Comparison:
    """Of episodes that did not fail, those of a task together."""
    old, new = _by_task(first), _by_task(second)
    both = [task for task in old if task in new]
    changes = [_change(old[task], new[task]) for task in both]
    return Comparison(
        before=_rate(old, both),
        after=_rate(new, both),
        difference=mean([change.after - change.before for change in changes]),
        gained=tuple(sorted((c for c in changes if c.after > c.before), key=lambda c: c.before - c.after)),
        lost=tuple(sorted((c for c in changes if c.after < c.before), key=lambda c: c.after - c.before)),
        same=sum(change.after == change.before for change in changes),
        apart=len(old) + len(new) - 2 * len(both),
    )


def _by_task(entries: Iterable[EpisodeRow]) -> dict[str, list[EpisodeRow]]:
    found: dict[str, list[EpisodeRow]] = defaultdict(list)
    for entry in entries:
        if entry.success is not None:
            found[entry.task].append(entry)
    return found


def _change(old: list[EpisodeRow], new: list[EpisodeRow]) -> Change:
    first = old[0]
    about = ", ".join((first.env, *first.tags, f"seed {first.seed}"))
    return Change(first.task, about, _mean(old), _mean(new), first, new[0])


def _mean(entries: list[EpisodeRow]) -> float:
    return sum(entry.success or 0.0 for entry in entries) / len(entries)


def _rate(found: dict[str, list[EpisodeRow]], tasks: list[str]) -> Estimate:
    played = [(entry.success or 0.0, task) for task in tasks for entry in found[task]]
    return proportion([success for success, _ in played], [task for _, task in played])
