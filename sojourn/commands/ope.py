"""`sojourn ope`: predicts how well weights would do, from recorded episodes of others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.commands.arguments import RecordedIn, StageOfPolicy, StepsOfStage, load, parse_steps
from sojourn.errors import ConfigError
from sojourn.terminal.output import CleanConsole

if TYPE_CHECKING:
    from sojourn.intervals import Estimate
    from sojourn.ope.predict import Prediction
    from sojourn.record.run_weights import Weights

CHOSEN = "wdr"  # the method by which candidates are compared


def ope(
    run: Annotated[
        Path,
        typer.Argument(
            help="The weights to predict: a run folder, whose best checkpoint is taken, or another one: runs/x@120, "
            "runs/x@last, runs/x@warmup, runs/x@before."
        ),
    ],
    data: RecordedIn = None,
    stage: StageOfPolicy = "",
    steps: StepsOfStage = "",
    outcome: Annotated[str, typer.Option(help="What is predicted: success or reward.")] = "success",
    all: Annotated[
        bool, typer.Option("--all", help="Predict all weights of the run, in order, and say which passes a gate.")
    ] = False,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="With --all: keep the last that passes as the run's best, which RUN means then."),
    ] = False,
) -> None:
    """Predict the mean outcome of weights from episodes that others played, without playing any."""
    from sojourn import event_loop
    from sojourn.ope.of_run import predict_run, recorded_groups
    from sojourn.record.run_weights import NamedRun, available_weights, find_weights

    if outcome not in ("success", "reward"):
        raise ConfigError(f"--outcome {outcome}: expected success or reward")
    named = NamedRun.parse(run)
    if not named.folder.is_dir():
        raise ConfigError(f"'{run}': expected a run folder, such as runs/x, or runs/x@120 for its weights at step 120")
    if all and named.weights:
        raise ConfigError(f"{run} --all: all weights of a run are predicted: name the folder alone, {named.folder}")
    if keep and not all:
        raise ConfigError("--keep chooses among several weights: add --all")
    records = recorded_groups(data or named.folder, stage, parse_steps(steps))
    recipe = load(named.folder, None).recipe
    candidates = available_weights(named.folder) if all else [find_weights(*named)]
    checkpoints = [candidate.checkpoint for candidate in candidates]
    predictions = event_loop.run(predict_run(recipe, checkpoints, records, outcome))
    if all:
        _choose(named.folder, candidates, predictions, outcome, keep)
    else:
        _print(predictions[0], outcome)


def _choose(
    run: Path, candidates: Sequence[Weights], predictions: Sequence[Prediction], outcome: str, keep: bool
) -> None:
    """Prints the prediction of each of a run's weights, and which of them pass."""
    from rich import box
    from rich.table import Table

    from sojourn.ope.predict import METHODS, improvements

    passed = improvements(predictions, CHOSEN)
    table = Table(
        "weights", f"{outcome}, 95% interval", "worth", "mean weight", "", box=box.SIMPLE_HEAD, pad_edge=False,
        show_edge=False,
    )  # fmt: skip
    for weights, prediction, passes in zip(candidates, predictions, passed, strict=True):
        verdict = "passes" if passes else "" if prediction.trusted else "the records show too little"
        worth, mean = f"{prediction.effective:.0f}", f"{prediction.mean_weight:.2f}"
        table.add_row(weights.name, _shown(prediction.estimates[CHOSEN], outcome), worth, mean, verdict)
    console = CleanConsole()
    console.print(table)
    recorded = _shown(predictions[0].estimates["recorded"], outcome)
    console.print(
        f"{predictions[0].episodes} recorded episodes, {outcome} {recorded}; predictions are by {METHODS[CHOSEN]}",
        soft_wrap=True,
    )
    best = max((number for number, passes in enumerate(passed) if passes), default=None)
    if best is None:
        console.print("none of these weights is predicted to do better than what was recorded", soft_wrap=True)
        return
    console.print(f"the best by prediction: {run}@{candidates[best].name}", soft_wrap=True)
    chosen = candidates[best].checkpoint
    if keep and chosen is not None:
        chosen.mark_best()
        console.print(f"it is kept as {run}@best", soft_wrap=True)


def _shown(estimate: Estimate, outcome: str) -> str:
    return estimate.percent if outcome == "success" else str(estimate)


def _print(prediction: Prediction, outcome: str) -> None:
    from rich import box
    from rich.table import Table

    from sojourn.ope.predict import FEW, METHODS

    table = Table("", f"{outcome}, 95% interval", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, estimate in prediction.estimates.items():
        table.add_row(METHODS[name], _shown(estimate, outcome))
    console = CleanConsole()
    console.print(table)
    console.print(
        f"{prediction.episodes} recorded episodes; their importance weights are worth {prediction.effective:.0f}, and "
        f"have the mean {prediction.mean_weight:.2f} (1 is expected)",
        soft_wrap=True,
    )
    if prediction.episodes < FEW:
        console.print(
            f"note: fewer than {FEW} recorded episodes show little of what any weights would do: record more, or trust "
            "no prediction but by playing (sojourn eval)",
            soft_wrap=True,
        )
    elif not prediction.trusted:
        console.print(
            "note: these weights differ so much from those that played that the records show little of what they would "
            "do: trust no prediction but by playing (sojourn eval)",
            soft_wrap=True,
        )
