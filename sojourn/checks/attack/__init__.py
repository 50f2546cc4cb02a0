"""Attacks on a world: does what an agent may try move its reward, excuse its play, or harm what is beside it?

`sojourn check WORLD --attack` plays a world as an attacker who knows nothing of its code: texts that try to be more
than text in every place where an action takes text, all answers at once, and, where the world runs programs, programs
that exhaust, signal, race, stall and reach out. Three things are asked of every one of them: it earns no more than an
idle play (or than harmless words in its place), it is not excused as a failure of the infrastructure, and nothing
beside the play changes: honest plays beside and after it are as they were before, canaries are untouched, no process
stays, the event loop turns, and memory does not grow without bound.

What it cannot see: attacks that need to know the world, several actions that only together earn something, and what a
world keeps on other machines. It is no proof: what it finds is there, what it does not find may be there too.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sojourn.checks.attack.canary import Canary
from sojourn.checks.attack.case import Case, Tally
from sojourn.checks.attack.categories import (
    CATEGORIES,
    MARK_S,
    beside,
    closers,
    interpreters,
    poisoning,
)
from sojourn.checks.attack.watch import Watch
from sojourn.checks.report import Outcome, Report, Verdict
from sojourn.envs.tools import as_family
from sojourn.errors import ConfigError
from sojourn.tasks.listed import listed
from sojourn.types import Task

KINDS, ALIKE, LOOKED = 3, 4, 300  # so many kinds of tasks, tasks of each, and tasks looked at for them
UNTAGGED = 60  # tasks of a world that does not tell their kinds
LEAST, HONEST_S = 12, 20.0  # honest plays that are always made, and how long more of them may take


@dataclass(frozen=True)
class Attacked:
    """The outcome of all attacks on a world, by category, in the order in which they were made."""

    subject: str
    tallies: tuple[Tally, ...]

    @property
    def tried(self) -> int:
        return sum(tally.tried for tally in self.tallies)

    @property
    def held(self) -> int:
        return sum(tally.held for tally in self.tallies)

    @property
    def report(self) -> Report:
        return Report(self.subject, tuple(map(_verdict, self.tallies)))


async def attack_env(
    family: Any,
    *,
    split: str = "train",
    seed: int = 0,
    max_turns: int = 100,
    only: Sequence[str] = (),
) -> Attacked:
    """Attacks a family (or a plain class) in every category, or in those of `only`."""
    if unknown := set(only) - set(CATEGORIES):
        raise ValueError(f"there is no category {sorted(unknown)[0]!r}: use some of {', '.join(CATEGORIES)}")
    made = as_family(family)
    canary, watch = await Canary().open(), Watch()
    case = Case(made, canary, watch, max_turns)
    try:
        if hasattr(made, "open"):
            await made.open()
        watch.start()
        tallies = await _attacks(case, split, seed, [name for name in CATEGORIES if not only or name in only])
    finally:
        await watch.stop()
        if hasattr(made, "close"):
            await made.close()
        await canary.close()
    named = getattr(family, "name", None) if not isinstance(family, type) else None
    return Attacked(str(named or getattr(family, "__qualname__", type(family).__qualname__)), tuple(tallies))


async def _attacks(case: Case, split: str, seed: int, names: Sequence[str]) -> list[Tally]:
    until, rng = time.monotonic() + HONEST_S, random.Random(seed)
    for task in _chosen(listed(case.family, split), rng):
        if len(case.honest) < LEAST or time.monotonic() < until:
            case.honest.append(await case.play_honestly(task))
    if not any(honest.actions for honest in case.honest):
        raise ConfigError("no honest play takes an action, so there is nothing to attack: run `sojourn check` first")
    case.canary.settle()
    await closers(case)
    runs = await interpreters(case)
    poisoned, remains = Tally("poisoning"), Tally("remains")
    tallies: list[Tally] = []
    for name in names:
        tally = await CATEGORIES[name](case, runs)
        if name == "races":
            await beside(case, tally, runs)
        tallies.append(tally)
        await poisoning(case, poisoned, name)
    remains.tried = 1
    remains.broken += [f"a process of an attack lives on: {found}" for found in _sleepers()[:1]]
    return [*tallies, poisoned, remains]


def _chosen(tasks: Sequence[Task], rng: random.Random) -> list[Task]:
    """Some random tasks, and for each some that have its tags, as answers of one kind are alike; more where no tags
    tell kinds apart."""
    looked = [tasks[index] for index in rng.sample(range(len(tasks)), min(LOOKED, len(tasks)))]
    chosen: list[Task] = []
    for first in looked[:KINDS]:
        chosen += [task for task in looked if task.tags[:1] == first.tags[:1] and task not in chosen][:ALIKE]
    return chosen if any(task.tags for task in chosen) else looked[:UNTAGGED]


def _sleepers() -> list[str]:
    """The processes that attacks started and that are still there, wherever on this machine."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            if MARK_S.encode() in line and int(entry.name) != os.getpid():
                found.append(line.replace(b"\0", b" ").decode(errors="replace")[:100])
    return found


def _verdict(tally: Tally) -> Verdict:
    if tally.broken:
        told = f"{tally.tried} tried, {tally.held} held; {tally.broken[0]}"
        return Verdict(tally.category, Outcome.FAILED, told)
    if not tally.tried:
        return Verdict(tally.category, Outcome.NOT_OFFERED, tally.absent)
    return Verdict(tally.category, Outcome.PASSED, f"{tally.tried} tried, all held")
