"""`sojourn play`: lets a person play an episode in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from sojourn import event_loop
from sojourn.commands.arguments import Overrides, build_world, print_risks
from sojourn.errors import ConfigError
from sojourn.terminal.output import CleanConsole


def play(
    env: Annotated[str, typer.Argument(help="An environment (see `sojourn envs`), 'module:Class', or a recipe.")],
    overrides: Overrides = None,
    split: Annotated[str, typer.Option(help="The split of the task: train or test.")] = "train",
    task: Annotated[int, typer.Option(help="The index of the task in the split.")] = 0,
    expert: Annotated[bool, typer.Option("--expert", help="Watch the environment's scripted expert instead.")] = False,
) -> None:
    """Play an episode yourself, in the place of the agent."""
    from sojourn.agents.person import play_in_terminal
    from sojourn.tasks.listed import listed

    family = build_world(env, overrides)
    tasks = listed(family, split)
    if not 0 <= task < len(tasks):
        raise ConfigError(f"--task {task}: the split '{split}' has the tasks 0 to {len(tasks) - 1}")
    print_risks(family)
    event_loop.run(play_in_terminal(family, tasks[task], CleanConsole(), expert=expert))
