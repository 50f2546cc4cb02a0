"""Checks that a world relabels episodes with tasks that they solve."""

from __future__ import annotations

import numpy as np

from sojourn.abilities import Relabels
from sojourn.checks.env.play import Case, Play, closing, play_through, short, spread
from sojourn.checks.promise import BrokenError, NotOfferedError
from sojourn.rollout.world import world_of
from sojourn.types import Ending, Episode, Message, Sample, Stop, Task, Trajectory, Turn, Versions

MOST = 5  # tasks of an episode that are played


async def relabelled(case: Case) -> str:
    """Plays the actions of plays again in the tasks that the world says they solve."""
    offered = [n for n in range(len(case.plays)) if isinstance(world_of(case.family, case.task_of(n)), Relabels)]
    if not offered or any(len(case.seats(case.task_of(number))) > 1 for number in offered):
        raise NotOfferedError("no relabelled() for one seat: hindsight learns nothing from its failures")
    count = 0
    for number in offered:
        actions, task = case.plays[number].actions, case.task_of(number)
        world = world_of(case.family, task)
        assert isinstance(world, Relabels)
        tasks = list(world.relabelled(episode_of(task, actions)))
        for place in spread(len(tasks) - 1, MOST) if tasks else []:
            await _require_solved(case, task, tasks[place], actions)
            count += 1
    return f"{count} tasks of {len(offered)} plays are solved by their actions"


async def _require_solved(case: Case, task: Task, other: Task, actions: list[Message]) -> None:
    if not isinstance(other, Task) or other.id == task.id:
        raise BrokenError(f"relabelled() gave {short(other)}: expected a task with other data than the episode's")
    if (other.env, other.split, other.tags) != (task.env, task.split, task.tags):
        raise BrokenError(
            f"relabelled() gave a task of '{other.env}', '{other.split}', {other.tags}: expected '{task.env}', "
            f"'{task.split}', {task.tags}, as the episode's task has"
        )
    async with closing(Play(case.family.make(other))) as play:
        await play_through(play, actions)
    if not play.success:
        raise BrokenError(
            f"the actions of an episode do not solve its relabelled task, of the data {short(other.data)}"
        )


def episode_of(task: Task, actions: list[Message]) -> Episode:
    """Returns an episode of one seat with these actions; its samples are made up."""
    sample = Sample(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.float32), Versions(0, 0), Stop.END)
    turns = tuple(Turn(-1, np.zeros(0, dtype=np.int64), sample, action) for action in actions)
    return Episode("check", task, (Trajectory("agent", turns, Ending.DONE),))
