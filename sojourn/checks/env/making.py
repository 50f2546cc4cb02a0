"""Checks the tasks that a world makes of data, which curricula propose."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from sojourn.abilities import HasExpert, MakesTasks
from sojourn.checks.env.play import Case, Play, ask_expert, closing, short
from sojourn.checks.promise import BrokenError, DoubtfulError, NotOfferedError
from sojourn.curricula.proposers.edits import Edits
from sojourn.curricula.task_history import TaskHistory
from sojourn.types import Task

PROPOSED = 12  # edits of each task that are tried


async def makes(case: Case) -> str:
    """Makes tasks of small random changes of the data of some tasks, and lets the expert play some of them."""
    family = case.family
    if not isinstance(family, MakesTasks) or not any(family.bounds(task) for task in case.tasks):
        raise NotOfferedError("it makes no tasks of data")
    made = [task for like in case.tasks for task in _made(case, family, like)]
    if not made:
        raise DoubtfulError(f"none of {PROPOSED} small changes of {len(case.tasks)} tasks gives a task")
    tests = _tests(family)
    for task in made:
        if task.split != "train" or _content(task) in tests:
            raise BrokenError(f"make_task() gives {short(task)}, which is of the test split: expected training tasks")
    for task in made[:: max(len(made) // case.episodes, 1)][: case.episodes]:
        await _solve(case, task)
    return f"{len(made)} of {PROPOSED * len(case.tasks)} small changes gave a task"


def _tests(family: Any) -> set[str]:
    """Returns the content of the first tests of a family."""
    tests = family.tasks("test")
    return {_content(tests[index]) for index in range(min(1_000, len(tests)))}


def _content(task: Task) -> str:
    return json.dumps([task.env, dict(task.data), task.seed], sort_keys=True)


def _made(case: Case, family: MakesTasks, like: Task) -> list[Task]:
    for key, (low, high, _) in family.bounds(like).items():
        value = like.data.get(key)
        if not isinstance(value, int | float) or not low <= value <= high:
            raise BrokenError(f"bounds() says that '{key}' is from {low:g} to {high:g}, and a task has {short(value)}")
    found: list[Task] = []
    for number in range(PROPOSED):
        draws = [np.random.default_rng([case.seed, like.seed, number]) for _ in range(2)]
        one, again = (Edits().propose(TaskHistory([like], 1), 0, family, rng) for rng in draws)
        if one != again:
            raise BrokenError(f"make_task() gives {short(again)} when asked again for {short(one)}")
        found += [] if one is None else [one]
    return found


async def _solve(case: Case, task: Task) -> None:
    """Enters a task, and plays it by the expert, where there is one, who must succeed."""
    async with closing(Play(case.family.make(task))) as play:
        await play.start()
        while isinstance(play.env, HasExpert) and not play.done:
            if len(play.actions) >= case.max_turns:
                raise BrokenError(f"{short(task)}, which it made: no end after {case.max_turns} actions of the expert")
            await play.act(await ask_expert(play.env))
        if play.done and len(case.seats(task)) == 1 and not play.success:
            raise BrokenError(f"{short(task)}, which it made: the expert's play ended without success")
