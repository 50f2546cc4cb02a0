"""`sojourn league`: every two of several operators play each other, and all are rated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.commands.arguments import Overrides, print_risks, world_and_table
from sojourn.terminal.output import CleanConsole


def league(
    env: Annotated[
        str,
        typer.Argument(
            help="An environment with several seats (see `sojourn envs`), 'module:Class', a recipe, or a run folder."
        ),
    ],
    overrides: Overrides = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(
            help="An operator that plays; repeat the option for each: random, expert, a run (runs/x, runs/x@120, "
            "runs/x@before; runs/x@* is each of its checkpoints), or an OpenAI-compatible endpoint "
            "(http://127.0.0.1:8000/v1#model)."
        ),
    ] = None,
    tasks: Annotated[
        int, typer.Option(min=1, help="The number of tasks that every two operators play, once with each seat.")
    ] = 32,
    first: Annotated[int, typer.Option(min=0, help="The index of the first task in the split.")] = 0,
    split: Annotated[str, typer.Option(help="The split of the tasks: train or test.")] = "test",
    seed: Annotated[int, typer.Option(help="The seed of sampling and of random actions.")] = 0,
    turns: Annotated[
        int, typer.Option(min=0, help="The turn limit of a game; 0 takes it from the recipe or the runs.")
    ] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Sample from runs at temperature 0.")] = False,
    key: Annotated[str, typer.Option(help="The environment variable that holds the endpoint's API key.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write the games and ratings to this JSON file.")] = None,
    curve: Annotated[
        Path | None, typer.Option(help="A PNG to draw the ratings of checkpoints against training steps to.")
    ] = None,
) -> None:
    """Let every two operators play each other, and rate all of them on the scale of Elo."""
    from sojourn import event_loop

    family, table = world_and_table(env, overrides)
    from sojourn.arena.run_league import run_league
    from sojourn.arena.run_match import MatchConfig

    config = MatchConfig(
        operators=operator or (), tasks=tasks, first=first, split=split, seed=seed, turns=turns, greedy=greedy, key=key
    )
    print_risks(family)
    event_loop.run(run_league(family, table, config, CleanConsole(), out, curve))
