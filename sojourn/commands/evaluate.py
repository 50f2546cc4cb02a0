"""`sojourn eval`: evaluates a checkpoint, an untrained model or the world's expert on a fixed panel of tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn import event_loop
from sojourn.commands.arguments import Overrides, load, print_risks, print_slowdowns

if TYPE_CHECKING:
    from sojourn.record.run_weights import NamedRun
    from sojourn.record.summary import Summary
    from sojourn.train.assemble import Components
    from sojourn.train.resolve import Resolved


def evaluate(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run folder, whose newest checkpoint is evaluated (or another one: runs/x@120, runs/x@warmup, "
            "runs/x@before), or a recipe, whose model is evaluated untrained."
        ),
    ],
    overrides: Overrides = None,
    split: Annotated[
        str, typer.Option(help="The split of the tasks: train or test. (default: that of the recipe's evaluations)")
    ] = "",
    greedy: Annotated[bool, typer.Option("--greedy", help="Sample at temperature 0.")] = False,
    expert: Annotated[
        bool, typer.Option("--expert", help="Evaluate the world's scripted expert instead of the model.")
    ] = False,
) -> None:
    """Evaluate a checkpoint, an untrained model or an expert on the tasks that every evaluation of the recipe plays."""
    from sojourn.record.run_weights import NamedRun

    extra = [f"evaluation.split={split}"] * bool(split) + ["evaluation.temperature=0.0"] * greedy
    named = NamedRun.parse(run)
    resolved = load(named.folder, [*extra, *(overrides or [])])
    print_risks(resolved.recipe.env)
    print_slowdowns(resolved.recipe)
    event_loop.run(evaluate_run(resolved, named if named.folder.is_dir() else None, expert))


async def evaluate_run(resolved: Resolved, run: NamedRun | None, expert: bool, progress: bool = True) -> Summary:
    """Evaluates a run, or the untrained model of a recipe; without `progress`, it prints nothing."""
    from sojourn.display import Display
    from sojourn.record.run_weights import find_weights
    from sojourn.record.summary import summarise
    from sojourn.terminal.output import CleanConsole
    from sojourn.train.assemble import assemble
    from sojourn.train.evaluate import evaluate as play_panel
    from sojourn.train.evaluate import panel

    if run is not None:
        find_weights(*run)
    with Display(console=CleanConsole(quiet=not progress)) as display:
        async with assemble(resolved.recipe) as components:
            name = await load_weights(components, run, display.message)
            name = "expert" if expert else name
            components.runner.on_episode = display.episode
            display.evaluating(name, len(panel(components)) * resolved.recipe.evaluation.samples)
            done = await play_panel(components, "evaluation", expert)
        summary = summarise(done.groups, done.scores)
        display.evaluation(name, summary)
    return summary


async def load_weights(
    components: Components, run: NamedRun | None, report: Callable[[str], None] = lambda sentence: None
) -> str:
    """Gives trainer and sampler the weights of a run, or those that the recipe starts from; returns what they are."""
    from sojourn.record.run_weights import BEFORE, find_weights
    from sojourn.train.weights import initial_weights

    # looked for when all is open, since a run in progress deletes old checkpoints
    found = find_weights(*run, report).checkpoint if run is not None else None
    if found is None:
        await initial_weights(components)
    else:
        components.trainer.load(found.weights, weights_only=True)
        await components.trainer.publish()
    return f"step {found.step}" if found else BEFORE if run else "as it is"
