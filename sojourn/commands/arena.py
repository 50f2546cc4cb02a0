"""`sojourn arena`: several operators side by side."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Annotated

import typer

from sojourn import event_loop
from sojourn.commands.arguments import Overrides, print_risks, world_and_table
from sojourn.terminal.output import CleanConsole


class Page(CleanConsole):
    """Standard output; when whoever reads it has gone, the match ends with that error and not in silence."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "nobody reads what is printed any more")


def arena(
    env: Annotated[str, typer.Argument(help="a world (see `sojourn envs`), 'module:Class', a recipe, or a run folder")],
    overrides: Overrides = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(
            help="who plays, given once for each: expert, random, person, a run (runs/x, runs/x@warmup, "
            "runs/x@before), or an endpoint (http://127.0.0.1:8000/v1#model)"
        ),
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, help="how many tasks")] = 8,
    first: Annotated[int, typer.Option(min=0, help="the number of the first one")] = 0,
    split: Annotated[str, typer.Option(help="train or test")] = "test",
    seed: Annotated[int, typer.Option(help="of what is sampled and of chance")] = 0,
    turns: Annotated[int, typer.Option(min=0, help="at most, of an episode; 0: as the recipe or the runs say")] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="runs at temperature 0")] = False,
    seat: Annotated[str, typer.Option(help="where the operators sit, in a world of several seats")] = "",
    others: Annotated[str, typer.Option(help="the operator in the seats that are left")] = "",
    key: Annotated[str, typer.Option(help="the environment variable that holds the endpoint's key")] = "",
    brief: Annotated[bool, typer.Option("--brief", help="a line for each task, without its turns")] = False,
    out: Annotated[Path | None, typer.Option(help="a new run folder to record it in, for `sojourn view`")] = None,
) -> None:
    """Play the same tasks with several operators, turn by turn together, and see where they part."""
    family, table = world_and_table(env, overrides)
    from sojourn.arena import run_match

    asked = run_match.MatchConfig(
        operators=operator or (), others=others, seat=seat, tasks=tasks, first=first, split=split, seed=seed,
        turns=turns, greedy=greedy, brief=brief, key=key, out=out,
    )  # fmt: skip
    print_risks(family)
    event_loop.run(run_match.run_match(family, table, asked, Page()))
