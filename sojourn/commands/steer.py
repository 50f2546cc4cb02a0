"""`sojourn steer`: makes a vector that steers a policy, from the recorded episodes of a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from sojourn.commands.arguments import RecordedIn, StageOfPolicy, StepsOfStage, load, parse_steps
from sojourn.errors import ConfigError
from sojourn.terminal.output import CleanConsole


def steer(
    run: Annotated[
        Path,
        typer.Argument(
            help="The policy to steer: a run folder, whose best checkpoint is taken, or another one: runs/x@120, "
            "runs/x@last, runs/x@warmup, runs/x@before."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write, which must not exist, such as east.safetensors.")],
    layer: Annotated[int, typer.Option(min=0, help="The layer after which the vector is added (0: the first).")],
    data: RecordedIn = None,
    stage: StageOfPolicy = "",
    steps: StepsOfStage = "",
    completions: Annotated[
        int,
        typer.Option(min=2, help="How many times each recorded decision is sampled again, to tell its entropy."),
    ] = 25,
) -> None:
    """Make a vector that steers a policy to decisions of which it is less certain (EAST), from recorded episodes."""
    from sojourn import event_loop
    from sojourn.ope.of_run import recorded_groups
    from sojourn.record.atomic import require_new_file
    from sojourn.record.run_weights import NamedRun, find_weights
    from sojourn.steering.east import east
    from sojourn.steering.of_run import decisions_of_run
    from sojourn.train.steered import SteeringVector

    named = NamedRun.parse(run)
    if not named.folder.is_dir():
        raise ConfigError(f"'{run}': expected a run folder, such as runs/x, or runs/x@120 for its weights at step 120")
    require_new_file(out)
    records = recorded_groups(data or named.folder, stage, parse_steps(steps))
    recipe = load(named.folder, None).recipe
    weights = find_weights(*named)
    plays = event_loop.run(decisions_of_run(recipe, weights.checkpoint, records, layer, completions))
    SteeringVector(east(plays), layer, recipe.model.name, "east").save(out)
    count = sum(len(play.entropies) for play in plays)
    mean = sum(float(play.entropies.sum()) for play in plays) / count
    console = CleanConsole()
    console.print(
        f"{out} is made of {count} decisions of {len(plays)} plays, whose mean entropy is {mean:.3g} nats",
        soft_wrap=True,
    )
    steered = ["sojourn", "eval", str(run), f"evaluation.steering.file={out}", "evaluation.steering.beta=1.0"]
    console.print(shlex.join(steered), soft_wrap=True)
