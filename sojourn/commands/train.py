"""`sojourn train`: trains by a recipe, or resumes a run."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from sojourn import event_loop
from sojourn.commands.arguments import Overrides, load, print_risks, print_slowdowns, print_unverified
from sojourn.errors import ConfigError
from sojourn.secrets import masked_value
from sojourn.terminal.output import CleanConsole

if TYPE_CHECKING:
    from sojourn.record.run import RunFolder
    from sojourn.train.recipe import Recipe
    from sojourn.train.resolve import Resolved

Dry = Annotated[
    bool,
    typer.Option(
        "--dry", help="Build and check everything, print every value of the config with its origin, and train nothing."
    ),
]


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe (a TOML file), or a run folder, whose config is used.")],
    overrides: Overrides = None,
    dry: Dry = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run of this run folder from its last checkpoint, with other values of the keys that may "
            "change, such as stages.rl.steps=200.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The run folder to create. (default: a new one in the folder that record.folder names)"),
    ] = None,
) -> None:
    """Train a model as a recipe says, and evaluate it before, between and after the stages of training."""
    resolved = load(recipe, overrides)
    before = load(recipe, None) if resume and overrides else resolved
    if dry and (resume or out):
        raise ConfigError("--dry builds and checks a recipe and makes nothing: it takes no --resume and no --out")
    print_risks(resolved.recipe.env)
    print_unverified(resolved.recipe)
    if dry:
        _dry(resolved)
        return
    if resume and out:
        raise ConfigError("--resume goes on in the folder of the run: it takes no --out")
    with run_folder(resolved, recipe if resume else None, out) as folder:
        change_config(folder, before, resolved)
        try:
            event_loop.run(train_in(resolved, folder, resume))
        except KeyboardInterrupt:
            kept = folder.path.exists()
            advice = f"`sojourn train --resume {folder.path}` goes on from its last checkpoint"
            print(f"stopped; {advice if kept else 'nothing was measured yet, so nothing is kept'}", file=sys.stderr)
            raise typer.Exit(130) from None


def run_folder(resolved: Resolved, resumed: Path | None, out: Path | None) -> RunFolder:
    """Creates the folder of a run that can be built, or opens that of a run to resume."""
    from sojourn.config import toml
    from sojourn.record.run import RunFolder

    recipe = resolved.recipe
    if resumed is not None:
        return RunFolder.open(resumed)
    check_buildable(recipe)
    config, seeds = toml.dump(resolved.table), {"run": recipe.seed}
    if out is not None:
        return RunFolder.create(out, config, seeds=seeds)
    return RunFolder.create_next(recipe.name, recipe.record.folder, config, seeds=seeds)


def change_config(folder: RunFolder, before: Resolved, after: Resolved, progress: bool = True) -> None:
    """Gives a resumed run the config that its overrides make, where they change it, and prints what changed."""
    from sojourn.train import changed_config

    if before is after or (resumed := changed_config.change(folder, before, after)) is None:
        return
    console = CleanConsole(quiet=not progress)
    for sentence in (str(resumed), *changed_config.notes(resumed, after.recipe)):
        console.print(sentence, soft_wrap=True, markup=False)


async def train_in(resolved: Resolved, folder: RunFolder, resume: bool, progress: bool = True) -> None:
    """Trains in a run folder, and draws the curve; without `progress`, it prints nothing."""
    from sojourn.display import Display
    from sojourn.errors import MissingExtraError, RecordError, cause
    from sojourn.plot import curve
    from sojourn.record.diagnosis import findings
    from sojourn.record.run_status import FAILURE
    from sojourn.train.run import run_recipe

    recipe, console = resolved.recipe, CleanConsole(quiet=not progress)
    (folder.path / FAILURE).unlink(missing_ok=True)
    print_slowdowns(recipe)
    console.print(f"run folder: {folder.path}", soft_wrap=True)
    if resume and {stage.name for stage in recipe.stages} <= {e["name"] for e in folder.evaluations()}:
        console.print("it is finished: nothing is left to train")
    try:
        with Display(recipe.name, console=console) as display:
            await run_recipe(recipe, folder, display, resume=resume)
    except BaseException as error:
        if not resume and not folder.evaluations() and not folder.has_episodes:
            folder.discard()  # it failed before anything was measured: nothing half-written stays behind
        elif isinstance(error, Exception):
            with contextlib.suppress(RecordError):  # what stopped the run is what is to be told
                folder.write_json(FAILURE, {"cause": cause(error)})
                _print_failed_episode(folder, console)
        raise
    for finding in findings(folder.path)[:1]:
        console.print(f"diagnosis: {finding}", style="yellow", soft_wrap=True, markup=False)
    try:
        curve([folder.path], folder.path / "curve.png")
        console.print(f"the curve is {folder.path / 'curve.png'}; all episodes are in {folder.path}", soft_wrap=True)
    except MissingExtraError as error:  # the run is complete, and can be drawn later
        console.print(f"note: {error}; all episodes are in {folder.path}", soft_wrap=True)
    console.print(f"to look at it: sojourn show {folder.path}", soft_wrap=True)


def _print_failed_episode(folder: RunFolder, console: CleanConsole) -> None:
    """Prints how to look at the last episode that failed, and how to play its task again."""
    from sojourn.record.episodes.store import EpisodeStore
    from sojourn.terminal.episode import play_again

    with EpisodeStore(folder.path) as store:
        for row in store.query(failed=True, newest=True, limit=1):
            console.print(f"to see where it failed: sojourn show {folder.path} {row.id}", soft_wrap=True)
            again = play_again(folder.path, store.read(row).episode.task)
            console.print(f"to play that task again: {again}", soft_wrap=True)


def _dry(resolved: Resolved) -> None:
    """Prints each value of the resolved recipe with its origin, and checks that everything can be built."""
    from sojourn.config.toml import leaves

    console = CleanConsole()
    for path, value in leaves(resolved.table, ""):
        origin = Text(resolved.origins.get(path, "default"), "dim")
        console.print(f"{path} = {masked_value(path, value)!r}", origin, soft_wrap=True)
    check_buildable(resolved.recipe)
    print_slowdowns(resolved.recipe)
    event_loop.run(_enter(resolved.recipe))
    console.print(f"{resolved.recipe.name}: everything can be built")


def check_buildable(recipe: Recipe) -> None:
    """Refuses a model, weights or packages that do not exist, a renderer that does not fit the model, and a split
    without tasks; says once which chat format is used where that is no matter of course."""
    from sojourn.abilities import BindsRenderer, HasNote
    from sojourn.record.metrics import NeedsPackages
    from sojourn.tasks.listed import listed
    from sojourn.train.weights import found_weights

    found_weights(recipe)
    recipe.backend.check(recipe.model, recipe.critic)
    for sink in recipe.record.sinks:
        if isinstance(sink, NeedsPackages):
            sink.require_packages()
    backend = recipe.backend
    bound = backend.bind_renderer(recipe.model, recipe.renderer) if isinstance(backend, BindsRenderer) else None
    if isinstance(bound, HasNote) and bound.note:
        print(f"note: {bound.note}", file=sys.stderr)
    for split in dict.fromkeys((recipe.curriculum.split, recipe.evaluation.split)):
        if not len(listed(recipe.env, split)):
            raise ConfigError(f"the split '{split}' of the world has no tasks: give it some")


async def _enter(recipe: Recipe) -> None:
    """Opens the world, as training would, and checks that it provides what the stages need of it."""
    from sojourn.rollout.world import open_world
    from sojourn.train.group_checks import check_groups

    async with open_world(recipe.env):
        await check_groups(recipe)
