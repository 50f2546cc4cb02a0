"""Groups that were played, for the tests of curricula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from made import score, trajectory

from sojourn.tasks import Generated
from sojourn.types import Episode, Group, Task

TASKS = Generated(lambda index: Task("made", {}, index, "train", (f"level-{index % 2}",)), 10)


def played(task: Task, wins: list[int], origin: str = "policy") -> tuple[Group, list[Any]]:
    """A group of a task and its scores, with the success of each episode."""
    rng, episodes, scores = np.random.default_rng(0), [], []
    for number, won in enumerate(wins):
        made = trajectory(rng, turns=1)
        made = replace(made, turns=(replace(made.turns[0], info={"success": float(won)}, reward=float(won)),))
        episodes.append(Episode(f"{task.seed}-{number}", task, (made,)))
        scores.append(score(made, float(won)))
    return Group(0, task, tuple(episodes), origin), scores


def observe(curriculum: Any, *groups: tuple[Group, list[Any]]) -> None:
    curriculum.observe([group for group, _ in groups], [scores for _, scores in groups])


def after(config: Any, *steps: dict[int, list[int]], tasks: Any = TASKS) -> Any:
    """A bound curriculum that observed steps, each of which has the successes of some tasks by number."""
    curriculum = config.bind(tasks, 0)
    for step in steps:
        observe(curriculum, *(played(curriculum.history.drawn(index), wins) for index, wins in step.items()))
    return curriculum


def weights(config: Any, *steps: dict[int, list[int]], tasks: Any = TASKS) -> list[float]:
    return config.weights(after(config, *steps, tasks=tasks).history).tolist()
