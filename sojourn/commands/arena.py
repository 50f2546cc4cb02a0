"""`sojourn arena`: plays the same tasks with several operators."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Annotated

import typer

from sojourn.commands.arguments import Overrides, print_risks, world_and_table
from sojourn.terminal.output import CleanConsole


class Page(CleanConsole):
    """Standard output. If its reader has closed it, the match ends with that error instead of silently."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "the reader of the standard output has closed it")


def arena(
    env: Annotated[
        str, typer.Argument(help="An environment (see `sojourn envs`), 'module:Class', a recipe, or a run folder.")
    ],
    overrides: Overrides = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(
            help="An operator that plays; repeat the option for each: expert, random, person, a run (runs/x, "
            "runs/x@warmup, runs/x@before), or an OpenAI-compatible endpoint (http://127.0.0.1:8000/v1#model)."
        ),
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, help="The number of tasks.")] = 8,
    first: Annotated[int, typer.Option(min=0, help="The index of the first task in the split.")] = 0,
    split: Annotated[str, typer.Option(help="The split of the tasks: train or test.")] = "test",
    seed: Annotated[int, typer.Option(help="The seed of sampling and of random actions.")] = 0,
    turns: Annotated[
        int, typer.Option(min=0, help="The turn limit of an episode; 0 takes it from the recipe or the runs.")
    ] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Sample from runs at temperature 0.")] = False,
    seat: Annotated[str, typer.Option(help="The seat that the operators play, if there are several.")] = "",
    others: Annotated[
        str, typer.Option(help="The operator that plays the other seats, if there are several seats.")
    ] = "",
    key: Annotated[str, typer.Option(help="The environment variable that holds the endpoint's API key.")] = "",
    brief: Annotated[bool, typer.Option("--brief", help="Print one line per task, without its turns.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Record the match in this new run folder, for `sojourn view`.")
    ] = None,
) -> None:
    """Play the same tasks with several operators in lock-step, and compare their actions and results."""
    from sojourn import event_loop

    family, table = world_and_table(env, overrides)
    from sojourn.arena import run_match

    config = run_match.MatchConfig(
        operators=operator or (), others=others, seat=seat, tasks=tasks, first=first, split=split, seed=seed,
        turns=turns, greedy=greedy, brief=brief, key=key, out=out,
    )  # fmt: skip
    print_risks(family)
    event_loop.run(run_match.run_match(family, table, config, Page()))
