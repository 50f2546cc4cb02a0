"""Attacks a world: checks that no attack changes rewards, passes for an infrastructure failure, or harms other plays.

`sojourn check WORLD --attack` plays a world as an attacker who does not know its code. It injects hostile texts in
every place where an action takes text, gives all answers at once, and, where the world runs programs, runs programs
that exhaust resources, send signals, race, stall, or reach out of the world. Each attack must hold to three
conditions: it earns no more than an idle play (or than harmless words in its place); it does not count as an
infrastructure failure; and nothing beside the play changes, so that honest plays beside and after it are as before,
canaries are untouched, no process stays, the event loop runs, and memory does not grow without bound.

It cannot find attacks that need knowledge of the world, several actions that earn something only together, or changes
of what a world keeps on other machines. It is no proof of safety: what it finds is real, but it may miss attacks.
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
    attack_beside_honest_play,
    find_closing_actions,
    interpreters,
    poisoning,
)
from sojourn.checks.attack.watch import Watch
from sojourn.checks.report import Outcome, Report, Verdict
from sojourn.envs.tools import as_family
from sojourn.errors import ConfigError
from sojourn.rollout.world import open_world
from sojourn.tasks.listed import some_tasks
from sojourn.types import Task

KINDS, TASKS_PER_KIND, SEARCHED = 3, 4, 300  # kinds of tasks, tasks of each kind, and tasks searched for them
UNTAGGED = 60  # tasks of a world without tags, by which kinds are told apart
MIN_HONEST, HONEST_S = 12, 20.0  # the least number of honest plays, and the time in which more are played


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
    """Attacks a family (or a plain class) in every category, or in those of `only`, and returns the outcome."""
    if unknown := set(only) - set(CATEGORIES):
        raise ValueError(f"there is no category {sorted(unknown)[0]!r}: use some of {', '.join(CATEGORIES)}")
    made = as_family(family)
    canary, watch = await Canary().open(), Watch()
    case = Case(made, canary, watch, max_turns)
    try:
        async with open_world(made):
            watch.start()
            try:
                tallies = await _attacks(case, split, seed, [name for name in CATEGORIES if not only or name in only])
            finally:
                await watch.stop()
    finally:
        await canary.close()
    named = getattr(family, "name", None) if not isinstance(family, type) else None
    return Attacked(str(named or getattr(family, "__qualname__", type(family).__qualname__)), tuple(tallies))


async def _attacks(case: Case, split: str, seed: int, names: Sequence[str]) -> list[Tally]:
    until, rng = time.monotonic() + HONEST_S, random.Random(seed)
    for task in _chosen(some_tasks(case.family, split), rng):
        if len(case.honest) < MIN_HONEST or time.monotonic() < until:
            case.honest.append(await case.play_honestly(task))
    if not any(honest.actions for honest in case.honest):
        raise ConfigError("no honest play takes an action, so there is nothing to attack: run `sojourn check` first")
    case.canary.settle()
    await find_closing_actions(case)
    runs = await interpreters(case)
    poisoned, remains = Tally("poisoning"), Tally("remains")
    tallies: list[Tally] = []
    for name in names:
        tally = await CATEGORIES[name](case, runs)
        if name == "races":
            await attack_beside_honest_play(case, tally, runs)
        tallies.append(tally)
        await poisoning(case, poisoned, name)
    remains.tried = 1
    remains.broken += [f"a process of an attack lives on: {process}" for process in _surviving_processes()[:1]]
    return [*tallies, poisoned, remains]


def _chosen(tasks: Sequence[Task], rng: random.Random) -> list[Task]:
    """Returns random tasks, each with others of its first tag, as tasks of one kind have similar answers; more of them
    where there are no tags."""
    searched = [tasks[index] for index in rng.sample(range(len(tasks)), min(SEARCHED, len(tasks)))]
    chosen: list[Task] = []
    for first in searched[:KINDS]:
        chosen += [task for task in searched if task.tags[:1] == first.tags[:1] and task not in chosen][:TASKS_PER_KIND]
    return chosen if any(task.tags for task in chosen) else searched[:UNTAGGED]


def _surviving_processes() -> list[str]:
    """Returns the command lines of attack processes that still run anywhere on this machine."""
    commands: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            if MARK_S.encode() in line and int(entry.name) != os.getpid():
                commands.append(line.replace(b"\0", b" ").decode(errors="replace")[:100])
    return commands


def _verdict(tally: Tally) -> Verdict:
    if tally.broken:
        detail = f"{tally.tried} tried, {tally.held} held; {tally.broken[0]}"
        return Verdict(tally.category, Outcome.FAILED, detail)
    if not tally.tried:
        return Verdict(tally.category, Outcome.NOT_OFFERED, tally.absent)
    return Verdict(tally.category, Outcome.PASSED, f"{tally.tried} tried, all held")
