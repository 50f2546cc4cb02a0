"""What is promised of the tasks that a world says an episode would have solved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from test_check_env import Counter, World

from sojourn.checks.env import check_env
from sojourn.checks.report import Outcome
from sojourn.types import Episode, Message, Step, Task

PROMISE = "relabelled episodes succeed"


class Passing(Counter):
    """Count to two and it counts as solved, where the task asks for no more; it asks for 9 unless its data say so."""

    async def step(self, agent: str, action: Message) -> Step:
        step = await super().step(agent, action)
        won = self.count >= self.task.data.get("to", 9)
        done = step.done or won
        return Step(None, {agent: float(won)}, done=True, success=won) if done else step

    expert = None  # it needs a count that is never reached


@dataclass(frozen=True)
class Relabelling(World):
    """Says that each episode counted to two."""

    change: Callable[[Task], Any] = lambda task: task

    def relabelled(self, episode: Episode) -> list[Any]:
        return [self.change(replace(episode.task, data={"to": 2}))]


async def test_tasks_that_are_solved_pass_and_a_world_without_them_need_not_have_any():
    verdict = (await check_env(Relabelling(Passing)))[PROMISE]
    assert verdict.outcome is Outcome.PASSED
    assert verdict.detail == "4 tasks of 4 plays are solved by their actions"
    assert (await check_env(World()))[PROMISE].outcome is Outcome.NOT_OFFERED


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda task: replace(task, data={"to": 5}), "do not solve its relabelled task, of the data {'to': 5}"),
        (lambda task: replace(task, data={}), "expected a task with other data than the episode's"),
        (lambda task: "two", "relabelled() gave 'two': expected a task"),
        (lambda task: replace(task, split="test"), "expected 'counter', 'train', (), as the episode's task has"),
        (lambda task: replace(task, tags=("new",)), "gave a task of 'counter', 'train', ('new',): expected"),
    ],
)
async def test_other_tasks_are_told(change, told: str):
    report = await check_env(Relabelling(Passing, change))
    assert list(report.failed) == [PROMISE]
    assert told in report[PROMISE].detail
