"""Compares two evaluations on the same tasks: on which tasks success improved, and on which it got worse."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sojourn.intervals import Estimate, mean, proportion
from sojourn.record.episodes.episode_row import EpisodeRow


class Change(NamedTuple):
    """One task of both evaluations: its success rate before and after, and one episode of each."""

    task: str
    label: str
    before: float
    after: float
    first: EpisodeRow
    second: EpisodeRow


@dataclass(frozen=True)
class Comparison:
    """The success rates on the tasks of both evaluations. `difference` is the mean of the differences by task."""

    before: Estimate
    after: Estimate
    difference: Estimate
    gained: tuple[Change, ...]
    lost: tuple[Change, ...]
    unchanged: int
    unmatched: int  # tasks of only one of the two evaluations


def compare(first: Iterable[EpisodeRow], second: Iterable[EpisodeRow]) -> Comparison:
    """Compares the episodes of two evaluations by task; failed episodes are left out."""
    old, new = _by_task(first), _by_task(second)
    both = [task for task in old if task in new]
    changes = [_change(old[task], new[task]) for task in both]
    return Comparison(
        before=_rate(old, both),
        after=_rate(new, both),
        difference=mean([change.after - change.before for change in changes]),
        gained=tuple(sorted((c for c in changes if c.after > c.before), key=lambda c: c.before - c.after)),
        lost=tuple(sorted((c for c in changes if c.after < c.before), key=lambda c: c.after - c.before)),
        unchanged=sum(change.after == change.before for change in changes),
        unmatched=len(old) + len(new) - 2 * len(both),
    )


def _by_task(entries: Iterable[EpisodeRow]) -> dict[str, list[EpisodeRow]]:
    by_task: dict[str, list[EpisodeRow]] = defaultdict(list)
    for entry in entries:
        if entry.success is not None:
            by_task[entry.task].append(entry)
    return by_task


def _change(old: list[EpisodeRow], new: list[EpisodeRow]) -> Change:
    first = old[0]
    label = ", ".join((first.env, *first.tags, f"seed {first.seed}"))
    return Change(first.task, label, _success_rate(old), _success_rate(new), first, new[0])


def _success_rate(entries: list[EpisodeRow]) -> float:
    return sum(entry.success or 0.0 for entry in entries) / len(entries)


def _rate(by_task: dict[str, list[EpisodeRow]], tasks: list[str]) -> Estimate:
    """Returns the success rate over some tasks; the interval takes the episodes of a task as a cluster."""
    played = [(entry.success or 0.0, task) for task in tasks for entry in by_task[task]]
    return proportion([success for success, _ in played], [task for _, task in played])
