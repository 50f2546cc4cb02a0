"""`sojourn play`: lets a person play an episode in the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.commands.arguments import Overrides, build_world, print_risks
from sojourn.errors import ConfigError
from sojourn.terminal.output import CleanConsole

if TYPE_CHECKING:
    from sojourn.types import Task

_ID = re.compile("[0-9a-f]{16}")  # of `Task.id`
MAX_SEARCHED = 100_000  # tasks of a split that are searched for an id


def play(
    env: Annotated[str, typer.Argument(help="An environment (see `sojourn envs`), 'module:Class', or a recipe.")],
    overrides: Overrides = None,
    split: Annotated[str, typer.Option(help="The split of the task: train or test.")] = "train",
    task: Annotated[
        str, typer.Option(help="The task: its index in the split, or its id, as `sojourn show RUN EPISODE` prints it.")
    ] = "0",
    expert: Annotated[bool, typer.Option("--expert", help="Watch the environment's scripted expert instead.")] = False,
) -> None:
    """Play an episode yourself, in the place of the agent."""
    from sojourn import event_loop
    from sojourn.agents.person import play_in_terminal
    from sojourn.tasks.listed import some_tasks

    family = build_world(env, overrides)
    chosen = _recorded(Path(env), task) or _task(some_tasks(family, split), split, task)
    print_risks(family)
    event_loop.run(play_in_terminal(family, chosen, CleanConsole(), expert=expert))


def _task(tasks: Sequence[Task], split: str, name: str) -> Task:
    """Returns the task of a split with this index or id."""
    if name.isdecimal() and int(name) < len(tasks):
        return tasks[int(name)]
    found = (task for task in islice(tasks, MAX_SEARCHED) if task.id == name) if _ID.fullmatch(name) else iter(())
    if (task := next(found, None)) is None:
        raise ConfigError(
            f"--task {name}: the split '{split}' has the tasks 0 to {len(tasks) - 1}: give one of these numbers, or "
            "the id of a task that a run has recorded, with the folder of the run"
        )
    return task


def _recorded(run: Path, name: str) -> Task | None:
    """Returns the task with this id from the episodes of a run; None for an index, and where there is no such task."""
    from sojourn.record.episodes.store import EpisodeStore

    if not (run.is_dir() and _ID.fullmatch(name)):
        return None
    with EpisodeStore(run) as store:
        rows = list(store.query(task=name, limit=1))
        return store.read(rows[0]).episode.task if rows else None
