"""`sojourn train`: trains by a recipe, or resumes a run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from sojourn.commands.arguments import (
    Overrides,
    load,
    print_risks,
    print_slowdowns,
    print_too_few_plays,
    print_unverified,
)
from sojourn.commands.failures import print_failed_episode
from sojourn.commands.served_runs import resume_command, unserved_note
from sojourn.errors import ConfigError
from sojourn.secrets import masked_value
from sojourn.terminal.clean import shell_word
from sojourn.terminal.output import CleanConsole

if TYPE_CHECKING:
    from sojourn.display import Display
    from sojourn.protocols import Renderer
    from sojourn.record.run import RunFolder
    from sojourn.record.summary import Summary
    from sojourn.train.changed_config import Changed
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
    from sojourn import event_loop

    if resume and not (recipe / "config.toml").is_file():
        raise ConfigError(
            f"--resume {recipe}: this is not a run folder, as it holds no config.toml: expected the folder of a run, "
            "such as runs/toy (`sojourn runs` lists them)"
        )
    resolved = load(recipe, overrides)
    before = load(recipe, None) if resume and overrides else resolved
    if dry and (resume or out):
        raise ConfigError("--dry builds and checks a recipe and makes nothing: it takes no --resume and no --out")
    print_risks(resolved.recipe.env)
    print_unverified(resolved.recipe)
    print_too_few_plays(resolved.recipe)
    if dry:
        _dry(resolved)
        return
    if resume and out:
        raise ConfigError("--resume goes on in the folder of the run: it takes no --out")
    with run_folder(resolved, recipe if resume else None, out) as folder:
        changed = change_config(folder, before, resolved)
        try:
            event_loop.run(train_in(resolved, folder, resume, changed))
        except KeyboardInterrupt:
            kept = folder.path.exists()
            advice = f"`{resume_command(resolved.recipe, folder.path)}` goes on from its last checkpoint"
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


def change_config(folder: RunFolder, before: Resolved, after: Resolved, progress: bool = True) -> Changed | None:
    """Gives a resumed run the config that its overrides make, where they change it, and prints what changed; returns
    None where nothing did."""
    from sojourn.train import changed_config

    if before is after or (changed := changed_config.change(folder, before, after)) is None:
        return None
    console = CleanConsole(quiet=not progress)
    for sentence in (str(changed.resumed), *changed_config.notes(changed.resumed, after.recipe)):
        console.print(sentence, soft_wrap=True, markup=False)
    return changed


async def train_in(
    resolved: Resolved, folder: RunFolder, resume: bool, changed: Changed | None = None, progress: bool = True
) -> None:
    """Trains in a run folder, and draws the curve; without `progress`, it prints nothing. Where the run fails before
    everything that it needs is open, what was `changed` of its config is taken back."""
    from sojourn.display import Display
    from sojourn.errors import MissingExtraError, RecordError, cause
    from sojourn.models.answers import has_answers
    from sojourn.models.questions import Questions
    from sojourn.plot import curve
    from sojourn.record.episodes.index import has_records
    from sojourn.record.run_status import FAILURE
    from sojourn.train.people import people_note

    recipe, console = resolved.recipe, CleanConsole(quiet=not progress)
    (folder.path / FAILURE).unlink(missing_ok=True)
    if progress:
        print_slowdowns(recipe)
    console.print(f"run folder: {folder.path}", soft_wrap=True)
    if note := people_note(recipe, folder.path):
        console.print(note, soft_wrap=True)
    if resume and {stage.name for stage in recipe.stages} <= {e["name"] for e in folder.evaluations()}:
        console.print("it is finished: nothing is left to train")
    elif resume and (note := unserved_note(recipe, folder.path)):
        console.print(note, soft_wrap=True, markup=False)
    opened = asyncio.Event()
    try:
        with Display(recipe.name, console=console) as display:
            await run_to_end(recipe, folder, display, resume=resume, opened=opened)
    except BaseException as error:
        if changed is not None and not opened.is_set():
            changed.undo()
        begun = resume or folder.evaluations() or has_records(folder.path / "tokens")
        if not (begun or has_answers(folder.path) or any(Questions(folder.path).counts())):
            folder.discard()  # it failed before anything was measured or answered: nothing half-written stays behind
        elif isinstance(error, Exception):
            with contextlib.suppress(RecordError):  # what stopped the run is what is to be told
                folder.write_json(FAILURE, {"cause": cause(error)})
                print_failed_episode(folder.path, console)
        raise
    _print_diagnosis(folder, console)
    _print_best(folder, console)
    try:
        curve([folder.path], folder.path / "curve.png")
        console.print(f"the curve is {folder.path / 'curve.png'}; all episodes are in {folder.path}", soft_wrap=True)
    except MissingExtraError as error:  # the run is complete, and can be drawn later
        console.print(f"note: {error}; all episodes are in {folder.path}", soft_wrap=True)
    console.print(f"to look at it: sojourn show {shell_word(folder.path)}", soft_wrap=True)


def _print_best(folder: RunFolder, console: CleanConsole) -> None:
    """Prints which weights the run's name stands for, where these are not those after the last step."""
    from sojourn.record.run_weights import LAST, available_weights

    held = [one for one in available_weights(folder.path) if one.checkpoint is not None]
    best = next((one.name for one in held if one.checkpoint is not None and one.checkpoint.best), "")
    if best and best != held[-1].name:
        console.print(
            f"the weights '{best}' did best: {folder.path} names these, {folder.path}@{LAST} those after the last step",
            soft_wrap=True,
            markup=False,
        )


async def run_to_end(
    recipe: Recipe,
    folder: RunFolder,
    display: Display,
    *,
    resume: bool = False,
    opened: asyncio.Event | None = None,
) -> Mapping[str, Summary]:
    """Runs a recipe as `run_recipe` does. Where a trainer's rank is lost, opens everything anew and goes on from the
    newest checkpoint, as often as the backend says."""
    from sojourn.abilities import Restarts
    from sojourn.errors import RankError, leaf
    from sojourn.train.run import run_recipe

    left = recipe.backend.restarts if isinstance(recipe.backend, Restarts) else 0
    while True:
        try:
            return await run_recipe(recipe, folder, display, resume=resume, opened=opened)
        except (RankError, ExceptionGroup) as raised:  # a group is of plays that were played at once
            error = leaf(raised)
            if not isinstance(error, RankError):
                raise
            if not left:
                raise RankError(
                    f"{error}: `sojourn train {folder.path} --resume` goes on from the last checkpoint"
                ) from error
            left, resume = left - 1, True
            display.message(f"{error}: the run goes on from its last checkpoint")


def _print_diagnosis(folder: RunFolder, console: CleanConsole) -> None:
    """Prints why the run learns nothing, where its record says so."""
    from sojourn.record import metrics
    from sojourn.record.diagnosis import findings
    from sojourn.record.episodes.store import EpisodeStore

    with EpisodeStore(folder.path) as store:
        found = findings(store, metrics.read(folder.path / "metrics.jsonl"))
    for finding in found[:1]:
        console.print(f"diagnosis: {finding}", style="yellow", soft_wrap=True, markup=False)


def _dry(resolved: Resolved) -> None:
    """Prints each value of the resolved recipe with its origin, and checks that everything can be built."""
    from sojourn import event_loop
    from sojourn.abilities import HasPlan, PlacesModels
    from sojourn.config.toml import leaves
    from sojourn.record.atomic import require_writable_folder
    from sojourn.train.further_models import further_models

    console, recipe = CleanConsole(), resolved.recipe
    for path, value in leaves(resolved.table, ""):
        origin = Text(resolved.origins.get(path, "default"), "dim")
        console.print(f"{path} = {masked_value(path, value)!r}", origin, soft_wrap=True)
    require_writable_folder(Path(recipe.record.folder))
    renderer = check_buildable(recipe)
    print_slowdowns(recipe)
    for kind, tokens in event_loop.run(_enter(recipe, renderer)).items():
        console.print(f"the first prompt of {kind}: {tokens:,} tokens", soft_wrap=True, markup=False)
    plan = recipe.backend.plan(recipe.model, recipe.critic) if isinstance(recipe.backend, HasPlan) else ()
    if isinstance(recipe.backend, PlacesModels):
        plan = [*plan, *recipe.backend.plan_models(further_models(recipe))]
    for sentence in (*_tasks_of_stages(recipe), *plan):
        console.print(sentence, soft_wrap=True, markup=False)
    console.print(f"{recipe.name}: everything can be built")


def check_buildable(recipe: Recipe) -> Renderer | None:
    """Refuses a model, weights or packages that do not exist, a renderer that does not fit the model, and a split
    without tasks; says once which chat format is used where that is no matter of course. Returns the renderer, None
    where the model is not on this machine yet."""
    from sojourn.abilities import BindsRenderer, ChecksWeights, HasNote
    from sojourn.record.metrics import NeedsPackages
    from sojourn.tasks.listed import some_tasks
    from sojourn.train.named_models import check_models_open
    from sojourn.train.reward_models import check_reward_models_open
    from sojourn.train.weights import found_weights

    found = found_weights(recipe)
    recipe.backend.check(recipe.model, recipe.critic)
    if found is not None and isinstance(recipe.backend, ChecksWeights):
        recipe.backend.check_weights(recipe.model, found.weights)
    check_models_open(recipe)
    check_reward_models_open(recipe)
    for sink in recipe.record.sinks:
        if isinstance(sink, NeedsPackages):
            sink.require_packages()
    backend = recipe.backend
    bound = backend.bind_renderer(recipe.model, recipe.renderer) if isinstance(backend, BindsRenderer) else None
    if isinstance(bound, HasNote) and bound.note:
        print(f"note: {bound.note}", file=sys.stderr)
    for split in dict.fromkeys((recipe.curriculum.split, recipe.evaluation.split)):
        some_tasks(recipe.env, split)
    return bound


def _tasks_of_stages(recipe: Recipe) -> Iterator[str]:
    """Says of each stage that draws tasks how many it takes, and how often each is played or demonstrated."""
    from sojourn.sources.experts import Experts
    from sojourn.tasks.listed import listed

    split = recipe.curriculum.split
    count = len(listed(recipe.env, split))
    for stage in recipe.stages:
        if not (taken := stage.groups.tasks(stage.steps)):
            continue
        drawn = stage.groups.width * stage.steps if isinstance(stage.groups, Experts) else taken
        distinct = min(taken, count)
        what = "demonstrations" if isinstance(stage.groups, Experts) else "groups"
        often = f", {drawn / distinct:.3g} of each" if drawn > distinct else ""
        yield f"stage '{stage.name}': {drawn:,} {what} of {distinct:,} of the {count:,} tasks of '{split}'{often}"


async def _enter(recipe: Recipe, renderer: Renderer | None) -> Mapping[str, int]:
    """Opens the world, as training would, and checks that it provides what the stages need of it; returns the length
    of its first prompts in tokens."""
    from sojourn.abilities import HasMaxContext
    from sojourn.rollout.world import open_world
    from sojourn.sources.agent_trial import ROOM
    from sojourn.train.group_checks import check_groups

    max_context = recipe.backend.max_context if isinstance(recipe.backend, HasMaxContext) else ROOM
    async with open_world(recipe.env):
        return await check_groups(recipe, renderer, max_context)
