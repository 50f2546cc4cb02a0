"""`sojourn eval`: evaluates a checkpoint, an untrained model or the world's expert on a fixed panel of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn import event_loop
from sojourn.commands.arguments import Overrides, load, print_risks, print_slowdowns

if TYPE_CHECKING:
    from sojourn.record.run_weights import NamedRun
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
    print_slowdowns(resolved.recipe.backend)
    event_loop.run(_evaluate(resolved, named if named.folder.is_dir() else None, expert))


async def _evaluate(resolved: Resolved, run: NamedRun | None, expert: bool) -> None:
    from sojourn.display import Display
    from sojourn.record.run_weights import BEFORE, find_weights
    from sojourn.record.summary import summarise
    from sojourn.train.assemble import assemble
    from sojourn.train.evaluate import evaluate as play_panel
    from sojourn.train.evaluate import panel
    from sojourn.train.weights import initial_weights

    if run is not None:
        find_weights(*run)
    with Display() as display:
        async with assemble(resolved.recipe) as components:
            # looked for again, since a run in progress deletes old checkpoints
            found = find_weights(*run, display.message).checkpoint if run is not None else None
            if found is None:
                await initial_weights(components)
            else:
                components.trainer.load(found.weights, weights_only=True)
                await components.trainer.publish()
            name = "expert" if expert else f"step {found.step}" if found else BEFORE if run else "as it is"
            components.runner.on_episode = display.episode
            display.evaluating(name, len(panel(components)) * resolved.recipe.evaluation.samples)
            done = await play_panel(components, "evaluation", expert)
        display.evaluation(name, summarise(done.groups, done.scores))
