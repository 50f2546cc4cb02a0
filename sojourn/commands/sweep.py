"""`sojourn sweep`: the runs of one recipe with several values and seeds, side by side or one after another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sojourn.commands.arguments import Overrides, load
from sojourn.errors import ConfigError
from sojourn.record.atomic import require_writable_folder
from sojourn.terminal.clean import one_line

if TYPE_CHECKING:
    from sojourn.sweep import PlannedRun
    from sojourn.train.recipe import Recipe


def sweep(
    recipe: Annotated[Path, typer.Argument(help="A recipe (a TOML file).")],
    overrides: Overrides = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="A key with a list of values, such as 'optim.lr=[1e-5, 3e-5]'; repeat it for combinations."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="The seeds of every combination, with commas between them.")] = "0,1,2",
    jobs: Annotated[int, typer.Option(min=1, help="How many runs train at the same time.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the sweep, where its runs, table and picture are.")
    ] = None,
) -> None:
    """Train a recipe with several values and seeds, and compare them in a table and a picture.

    Called again, it goes on: finished runs are kept, unfinished ones resumed from their last checkpoint.
    """
    from sojourn import sweep as sweeps

    if out is None:
        raise ConfigError("--out is missing: name the folder of the sweep, such as --out sweeps/lr")
    require_writable_folder(out)
    runs = sweeps.plan(vary or (), _seeds(seeds), overrides or ())
    configs = [_config(recipe, run, out / run.name) for run in runs]
    runs = sweeps.recognise(runs, configs, out)
    out.mkdir(parents=True, exist_ok=True)
    failed = _train_all(recipe, runs, out, jobs)
    found = sweeps.results(out, runs)
    lines = sweeps.table(found)
    (out / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    if any(found.values()):
        recipe_of = load(recipe, list(runs[0].overrides)).recipe
        sweeps.draw(found, out / "curve.png", recipe_of.name, _stage_starts(recipe_of))
        print(f"the picture is {out / 'curve.png'}, the table {out / 'table.md'}; every run is a folder of {out}")
    if failed:
        print(f"{failed} of {len(runs)} runs failed; called again, the sweep tries them again", file=sys.stderr)
        raise typer.Exit(1)


def _stage_starts(recipe: Recipe) -> dict[str, int]:
    """Returns the step of the run at which each stage begins."""
    steps = [stage.steps for stage in recipe.stages]
    return {stage.name: sum(steps[:number]) for number, stage in enumerate(recipe.stages)}


def _seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"--seeds {text}: expected whole numbers with commas between them, such as 0,1,2")
    return [int(part) for part in parts]


def _config(recipe: Path, run: PlannedRun, folder: Path) -> dict[str, Any]:
    """Returns the complete config of a run. Refuses, before anything trains, what cannot be resolved, and a folder with
    the run of another recipe."""
    from sojourn.record.run import RunFolder
    from sojourn.secrets import masked_table

    table = masked_table(load(recipe, list(run.overrides)).table)
    if (folder / "config.toml").is_file() and RunFolder.read(folder).config != table:
        raise ConfigError(
            f"{folder} is the run of another recipe, or of other values: give the sweep another --out, or move it away"
        )
    return table


def _train_all(recipe: Path, runs: Sequence[PlannedRun], out: Path, jobs: int) -> int:
    """Trains all runs that are not finished, and returns how many failed."""
    failed = 0
    for run in runs:
        if run.same_as:
            print(one_line(f"{run.name}: has the config of {run.same_as}, and is not trained again", 500), flush=True)
    runs = list({run.folder: run for run in reversed(runs)}.values())[::-1]
    pool = ThreadPoolExecutor(jobs)
    try:
        waiting = {pool.submit(_train, recipe, run, out / run.folder): run for run in runs}
        for number, done in enumerate(as_completed(waiting), 1):
            failed += bool(done.result())
            state = f"{done.result() or 'finished'} ({number} of {len(runs)})"
            print(one_line(f"{waiting[done].name}: {state}", 500), flush=True)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # what is interrupted goes on when the sweep is called again
    return failed


def _train(recipe: Path, run: PlannedRun, folder: Path) -> str:
    """Trains one run in a process of its own, or resumes it; returns the last line that it printed if it failed."""
    from sojourn import sweep as sweeps

    begun = (folder / "config.toml").is_file()
    if begun and sweeps.finished(folder):
        return ""
    log = folder.with_name(f"{folder.name}.log")
    print(one_line(f"{run.name}: {'goes on' if begun else 'trains'}; what it prints is in {log}", 500), flush=True)
    words = ["--resume", str(folder)] if begun else [str(recipe), *run.overrides, "--out", str(folder)]
    with log.open("ab") as file:
        done = subprocess.run([sys.executable, "-m", "sojourn", "train", *words], stdout=file, stderr=subprocess.STDOUT)
    if done.returncode == 0:
        return ""
    said = log.read_text(errors="replace").strip().splitlines()
    return f"failed, {said[-1] if said else f'exit code {done.returncode}'} (all of it: {log})"
