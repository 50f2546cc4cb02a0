"""Which tasks of a world are the same in both of its splits, so that a test would be of what was trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from sojourn.checks.env import check_env
from sojourn.types import Task
from tests.checks.test_check_env import World

SHARED = "its splits share no task"


class Quiz:
    """Answer the question."""

    tasks: ClassVar = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(10)]

    def __init__(self, question: str, answer: str):
        self.question, self.answer, self.said = question, answer, ""

    def goal(self) -> str:
        """Returns the question."""
        return self.question

    def say(self, answer: str) -> None:
        """Say the answer."""
        self.said = answer

    def reward(self) -> float | None:
        """Returns None while the play goes on."""
        return float(self.said == self.answer) if self.said else None


class Repeated(Quiz):
    """Answer the question."""

    tasks: ClassVar = [*Quiz.tasks[:4], Quiz.tasks[2], *Quiz.tasks[5:]]  # every fifth is a test task


class Seeded(Repeated):
    """Answer the question."""

    def __init__(self, question: str, answer: str, seed: int):
        super().__init__(f"{question} ({seed})", answer)


@pytest.mark.parametrize(("world", "broken"), [(Quiz, False), (Repeated, True), (Seeded, False)])
async def test_a_task_that_is_listed_twice_is_not_in_both_splits(world: type, broken: bool) -> None:
    """Where the class takes no seed, the number of the task in its list, which becomes its seed, changes nothing."""
    report = await check_env(world, episodes=1)
    assert (SHARED in report.failed) == broken
    if broken:
        assert report[SHARED].detail.startswith("train task 2 is test task 0 too")


@dataclass(frozen=True)
class Late(World):
    """A family whose splits share a task far behind."""

    def tasks(self, split: str) -> list[Task]:
        first = 1_990 if split == "test" else 0
        return [Task("counter", {}, first + number, split) for number in range(2_000)]


async def test_tasks_that_are_listed_are_compared_to_the_last() -> None:
    report = await check_env(Late(), episodes=1)
    assert report[SHARED].detail.startswith("train task 1990 is test task 0 too")
