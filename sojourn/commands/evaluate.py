"""`sojourn eval`: a panel of tasks, played by a checkpoint, a model as it is, or the world's expert."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn import event_loop
from sojourn.commands.given import Overrides, load, tell_risks

if TYPE_CHECKING:
    from sojourn.record.checkpoint import Checkpoint
    from sojourn.train.resolve import Resolved


def evaluate(
    run: Annotated[Path, typer.Argument(help="a run folder (its newest checkpoint), or a recipe (its model as it is)")],
    overrides: Overrides = None,
    split: Annotated[str, typer.Option(help="train or test, by default what the recipe evaluates on")] = "",
    greedy: Annotated[bool, typer.Option("--greedy", help="temperature 0")] = False,
    expert: Annotated[bool, typer.Option("--expert", help="the world's scripted expert instead of the model")] = False,
) -> None:
    """Evaluate a run's newest checkpoint on a fixed panel of tasks."""
    extra = [f"evaluation.split={split}"] * bool(split) + ["evaluation.temperature=0.0"] * greedy
    resolved = load(run, [*extra, *(overrides or [])])
    tell_risks(resolved.recipe.env)
    event_loop.run(_evaluate(resolved, run if run.is_dir() else None, expert))


async def _evaluate(resolved: Resolved, run: Path | None, expert: bool) -> None:
    from sojourn.display import Display
    from sojourn.errors import RecordError
    from sojourn.record import checkpoint
    from sojourn.record.summary import summarise
    from sojourn.train.assemble import assemble
    from sojourn.train.evaluate import evaluate as play_panel
    from sojourn.train.evaluate import panel
    from sojourn.train.weights import initial_weights

    def newest(folder: Path, tell: Callable[[str], None]) -> Checkpoint:
        found = checkpoint.latest(folder / "checkpoints", tell)
        if found is None:
            raise RecordError(f"'{folder}' has no complete checkpoint yet: train it first, or evaluate its config.toml")
        return found

    if run is not None:
        newest(run, lambda sentence: None)  # told below
    with Display() as display:
        async with assemble(resolved.recipe) as rig:
            name = "expert" if expert else "as it is"
            if run is None:
                await initial_weights(rig)
            else:  # looked for again: a run that goes on drops old checkpoints
                found = newest(run, display.message)
                rig.trainer.load(found.weights, weights_only=True)
                await rig.trainer.publish()
                name = name if expert else f"step {found.step}"
            rig.runner.on_episode = display.episode
            display.evaluating(name, len(panel(rig)) * resolved.recipe.evaluation.samples)
            done = await play_panel(rig, "evaluation", expert)
        display.evaluation(name, summarise(done.groups, done.scores))
