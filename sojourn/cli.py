"""The command: `sojourn train | eval | play | check | envs | methods | runs`."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from sojourn import threads
from sojourn.errors import ConfigError, SojournError

if TYPE_CHECKING:
    from sojourn.checks.report import Report
    from sojourn.recipe import Recipe, Resolved
    from sojourn.record.checkpoint import Checkpoint
    from sojourn.record.run import RunFolder

app = typer.Typer(
    help="Train LLM agents by online reinforcement learning, in the environments they act in.",
    no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
)  # fmt: skip

Overrides = Annotated[list[str] | None, typer.Argument(help="dotted overrides, such as stages.rl.optim.lr=3e-6")]
Dry = Annotated[bool, typer.Option("--dry", help="build and check everything, show where each value comes from, stop")]


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="a recipe (TOML), or a run folder")],
    overrides: Overrides = None,
    dry: Dry = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in this folder")] = False,
    out: Annotated[Path | None, typer.Option(help="the run folder; by default a new one under record.folder")] = None,
) -> None:
    """Train by a recipe; evaluates before, between and after its stages."""
    resolved = _load(recipe, overrides)
    if dry and (resume or out):
        raise ConfigError("--dry builds and checks a recipe and makes nothing: it takes no --resume and no --out")
    if dry:
        _dry(resolved)
        return
    if resume and (overrides or out):
        raise ConfigError("--resume goes on with a run exactly as it was: it takes no overrides and no --out")
    with _run_folder(resolved, recipe if resume else None, out) as folder:
        try:
            asyncio.run(_train(resolved, folder, resume))
        except KeyboardInterrupt:
            kept = folder.path.exists()
            advice = f"`sojourn train --resume {folder.path}` goes on from its last checkpoint"
            print(f"stopped; {advice if kept else 'nothing was measured yet, so nothing is kept'}", file=sys.stderr)
            raise typer.Exit(130) from None


def _run_folder(resolved: Resolved, resumed: Path | None, out: Path | None) -> RunFolder:
    from sojourn import config
    from sojourn.record.run import RunFolder

    recipe = resolved.recipe
    if resumed is not None:
        return RunFolder.open(resumed)
    _check_buildable(recipe)
    path = out or RunFolder.next(recipe.name, recipe.record.folder)
    return RunFolder.create(path, config.dump(resolved.table), seeds={"run": recipe.seed})


async def _train(resolved: Resolved, folder: RunFolder, resume: bool) -> None:
    from sojourn.display import Display
    from sojourn.record.plot import curve
    from sojourn.stages import run_recipe

    recipe, console = resolved.recipe, Console()
    console.print(f"run folder: {folder.path}", soft_wrap=True)
    if resume and {stage.name for stage in recipe.stages} <= {e["name"] for e in folder.evaluations()}:
        console.print("it is finished: nothing is left to train")
    try:
        with Display(recipe.name, console=console) as display:
            await run_recipe(recipe, folder, display, resume=resume)
    except BaseException:
        if not resume and not folder.evaluations():
            folder.discard()  # it failed before anything was measured: nothing half-written stays behind
        raise
    curve([folder.path], folder.path / "curve.png")
    console.print(f"the curve is {folder.path / 'curve.png'}; all episodes are in {folder.path}", soft_wrap=True)
    console.print(f"to read some: sojourn runs {folder.path} --episodes", soft_wrap=True)


def _load(path: Path, overrides: list[str] | None) -> Resolved:
    """Reads a recipe with torch's threads prepared first: components may import torch."""
    from sojourn import config

    tables = config.read(path, overrides or ())
    wanted = tables.data.get("backend", {})
    count = wanted.get("threads", 0) if isinstance(wanted, dict) else 0
    threads.prepare(max(count, 0) if isinstance(count, int) else 0)
    from sojourn.recipe import resolve

    return resolve(tables)


def _dry(resolved: Resolved) -> None:
    """Shows the resolved recipe, and checks that everything can be built."""
    from sojourn.config import leaves

    console = Console()
    for path, value in leaves(resolved.table, ""):
        console.print(f"{path} = {value!r}", f"[dim]{_origin(resolved, path)}[/dim]", soft_wrap=True, highlight=False)
    _check_buildable(resolved.recipe)
    asyncio.run(_enter(resolved.recipe))
    console.print(f"{resolved.recipe.name}: everything can be built")


def _check_buildable(recipe: Recipe) -> None:
    """Refuses a model that is not there and a split without tasks."""
    recipe.backend.check(recipe.model, recipe.critic)
    for split in dict.fromkeys(("train", recipe.evaluation.split)):
        if not len(recipe.env.tasks(split)):
            raise ConfigError(f"the split '{split}' of the world has no tasks: give it some")


async def _enter(recipe: Recipe) -> None:
    """Opens the world, as training would, and asks its stages whether it serves them."""
    from sojourn.rig import opened
    from sojourn.stages import check_groups

    async with opened(recipe.env):
        await check_groups(recipe)


def _origin(resolved: Resolved, path: str) -> str:
    """Where a value came from; a stage's value may come from the top level, which all stages share."""
    names = {str(number): stage.name for number, stage in enumerate(resolved.recipe.stages)}
    parts = path.split(".")
    options = [path]
    if parts[0] == "stages":
        options += [".".join(["stages", names[parts[1]], *parts[2:]]), ".".join(parts[2:])]
    for option in options:
        pieces = option.split(".")
        for depth in range(len(pieces), 0, -1):
            if ".".join(pieces[:depth]) in resolved.origins:
                return resolved.origins[".".join(pieces[:depth])]
    return "default"


@app.command(name="eval")
def evaluate(
    run: Annotated[Path, typer.Argument(help="a run folder (its newest checkpoint), or a recipe (its model as it is)")],
    overrides: Overrides = None,
    split: Annotated[str, typer.Option(help="train or test, by default what the recipe evaluates on")] = "",
    greedy: Annotated[bool, typer.Option("--greedy", help="temperature 0")] = False,
    expert: Annotated[bool, typer.Option("--expert", help="the world's scripted expert instead of the model")] = False,
) -> None:
    """Evaluate a run's newest checkpoint on a fixed panel of tasks."""
    extra = [f"evaluation.split={split}"] * bool(split) + ["evaluation.temperature=0.0"] * greedy
    resolved = _load(run, [*extra, *(overrides or [])])
    asyncio.run(_evaluate(resolved, run if run.is_dir() else None, expert))


async def _evaluate(resolved: Resolved, run: Path | None, expert: bool) -> None:
    from sojourn.display import Display
    from sojourn.errors import RecordError
    from sojourn.evaluate import evaluate as play_panel
    from sojourn.evaluate import panel
    from sojourn.record import checkpoint
    from sojourn.record.intervals import summarise
    from sojourn.rig import assemble
    from sojourn.stages import initial_weights

    def newest(folder: Path) -> Checkpoint:
        found = checkpoint.latest(folder / "checkpoints")
        if found is None:
            raise RecordError(f"'{folder}' has no complete checkpoint yet: train it first, or evaluate its config.toml")
        return found

    if run is not None:
        newest(run)
    with Display() as display:
        async with assemble(resolved.recipe) as rig:
            name = "expert" if expert else "as it is"
            if run is None:
                await initial_weights(rig)
            else:  # looked for again: a run that goes on drops old checkpoints
                found = newest(run)
                rig.trainer.load(found.weights, weights_only=True)
                await rig.trainer.publish()
                name = name if expert else f"step {found.step}"
            rig.runner.on_episode = display.episode
            display.evaluating(name, len(panel(rig)) * resolved.recipe.evaluation.samples)
            done = await play_panel(rig, "evaluation", expert)
        display.evaluation(name, summarise(done.groups, done.scores))


@app.command()
def play(
    env: Annotated[str, typer.Argument(help="a world (see `sojourn envs`), 'module:Class', or a recipe")],
    overrides: Overrides = None,
    split: Annotated[str, typer.Option(help="train or test")] = "train",
    task: Annotated[int, typer.Option(help="which task of the split")] = 0,
    expert: Annotated[bool, typer.Option("--expert", help="watch the scripted expert")] = False,
) -> None:
    """Take the agent's seat yourself, in the terminal."""
    from sojourn.agents.person import play_in_terminal

    family = _family(env, overrides)
    tasks = family.tasks(split)
    if not 0 <= task < len(tasks):
        raise ConfigError(f"--task {task}: the split '{split}' has the tasks 0 to {len(tasks) - 1}")
    asyncio.run(play_in_terminal(family, tasks[task], Console(), expert=expert))


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="a registered name, 'module:Class', or a recipe (its world)")],
    overrides: Overrides = None,
    kind: Annotated[str, typer.Option(help="env, estimator, loss or backend; by default what the name is of")] = "",
    episodes: Annotated[
        int | None, typer.Option(min=1, help="tasks to try each promise of a world on [default: 4]")
    ] = None,
) -> None:
    """Check that a component keeps its promises: a world, an estimator, a loss or a backend."""
    report = _report(kind or _kind_of(name), name, overrides, episodes)
    report.print(Console())
    if not report.passed:
        raise typer.Exit(1)


SUITES = {
    "env": "sojourn.checks.env:check_env",
    "estimator": "sojourn.checks.estimator:check_estimator",
    "loss": "sojourn.checks.loss:check_loss",
    "backend": "sojourn.checks.backend:check_backend",
}


def _kind_of(name: str) -> str:
    """What a name is of; a recipe is taken for its world, and one's own class for what it looks like."""
    from sojourn.components import COMPONENTS
    from sojourn.registry import find, nearest

    kinds = [kind for kind in SUITES if name in COMPONENTS[kind]]
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        raise ConfigError(f"'{name}' is the name of several components: add --kind {' or --kind '.join(kinds)}")
    if ":" in name:
        return _kind_of_class(find("env", name))
    if Path(name).exists():
        return "env"
    names = {known for kind in SUITES for known in COMPONENTS[kind]}
    raise ConfigError(f"unknown component '{name}': {nearest(name, names)} (or your own 'module:Class')")


def _kind_of_class(cls: Any) -> str:
    """An estimator or a loss says what it needs, and is called with groups or with a batch; a backend opens a model."""
    import inspect

    if hasattr(cls, "needs") and callable(cls):
        return "loss" if "batch" in inspect.signature(cls.__call__).parameters else "estimator"
    return "backend" if hasattr(cls, "open") and "renderer" in inspect.signature(cls.open).parameters else "env"


def _report(kind: str, name: str, overrides: list[str] | None, episodes: int | None) -> Report:
    import importlib
    import inspect

    if kind not in SUITES:
        raise ConfigError(f"--kind {kind}: use one of {', '.join(SUITES)}")
    if episodes is not None and kind != "env":
        raise ConfigError(f"--episodes {episodes}: only a world is played, and '{name}' is to be checked as {kind}")
    component = _family(name, overrides) if kind == "env" else _component(kind, name, overrides)
    module, _, suite = SUITES[kind].partition(":")
    options = {"episodes": 4 if episodes is None else episodes} if kind == "env" else {}
    found = getattr(importlib.import_module(module), suite)(component, **options)
    return asyncio.run(found) if inspect.iscoroutine(found) else found


@app.command()
def envs(
    name: Annotated[str, typer.Argument(help="one world, or your own 'module:Class'; all, where none is named")] = "",
    overrides: Overrides = None,
    measure: Annotated[bool, typer.Option("--measure", help="play it on this machine, now")] = False,
) -> None:
    """The worlds that come with Sojourn: what they are, what they need, and what was measured of them."""
    from sojourn import atlas

    console = Console()
    if not name:
        if measure or overrides:
            raise ConfigError("name the world that is meant: sojourn envs toy --measure")
        return console.print(atlas.table(atlas.worlds(), console.width))
    family = _family(name, overrides)
    entry = atlas.describe(name, family)
    if measure:
        entry = atlas.measured_now(entry, family)
    console.print(atlas.sheet(entry, family))


@app.command()
def methods(
    kind: Annotated[str, typer.Argument(help="estimator, loss or stream; by default all")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="as the page of the documentation")] = False,
) -> None:
    """List the methods: where they come from, what they need and what they go with."""
    from rich.table import Table

    from sojourn import menu

    threads.prepare()
    if markdown:
        if kind:
            raise ConfigError(f"--markdown is a page of all methods: leave out '{kind}'")
        print(menu.markdown(), end="")
        return
    shown = Table("kind", "name", "what it is", "from", "needs", "goes with", box=None, padding=(0, 1, 1, 0))
    for method in menu.methods(kind):
        said = (method.what, "; ".join(method.sources), ", ".join(method.needs), method.composes)
        shown.add_row(method.kind, f"[bold]{method.name}[/bold]", *map(escape, said))
    Console().print(shown)


@app.command()
def runs(
    folders: Annotated[list[Path] | None, typer.Argument(help="runs, or folders of runs; by default runs/")] = None,
    curve: Annotated[Path | None, typer.Option(help="draw the run folders, seeds of one recipe, to this PNG")] = None,
    episodes: Annotated[bool, typer.Option("--episodes", help="list the newest episodes of a run")] = False,
    stage: Annotated[str, typer.Option(help="of which stage, by default the last that was trained")] = "",
    episode: Annotated[str, typer.Option(help="read this episode of a run")] = "",
) -> None:
    """List runs: their evaluations, steps and episodes; read an episode; or draw a learning curve."""
    from sojourn.record import listing

    if curve is not None:
        _draw(folders or [], curve)
    elif not (episodes or stage or episode):
        Console().print(listing.runs(folders or [Path("runs")]))
    elif folders is None or len(folders) != 1:
        raise ConfigError("--episodes, --stage and --episode read one run: sojourn runs runs/a --episodes")
    else:
        Console().print(listing.transcript(folders[0], episode) if episode else listing.episodes(folders[0], stage))


def _draw(folders: list[Path], out: Path) -> None:
    from sojourn.record import plot

    if not folders:
        raise ConfigError("--curve needs the run folders to draw: sojourn runs runs/a runs/b --curve curve.png")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--curve {out}: there is no folder '{out.parent}': make it first")
    plot.curve(folders, out)
    print(f"drawn: {out}")


def _family(name: str, overrides: list[str] | None) -> Any:
    threads.prepare()
    return _load(Path(name), overrides).recipe.env if Path(name).exists() else _component("env", name, overrides)


def _component(kind: str, name: str, overrides: list[str] | None) -> Any:
    from sojourn import config
    from sojourn.registry import build

    threads.prepare()
    tables = config.Tables({"name": name})
    for override in overrides or []:
        tables.override(override.removeprefix(f"{kind}."))
    return build(kind, tables.data, kind).value


def main() -> None:
    """The entry point: one sentence and exit code 2 for whatever the user can mend."""
    sys.path.insert(0, str(Path.cwd()))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows another
    try:
        app()
    except (SojournError, OSError) as error:
        _fail(error)
    except KeyboardInterrupt:  # a second one, while the first is being obeyed
        sys.exit(130)
    except BaseExceptionGroup as group:
        found = _leaf(group)
        if not isinstance(found, SojournError | OSError):
            raise
        _fail(found)


def _leaf(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _fail(error: BaseException) -> None:
    print(f"sojourn: {error}", file=sys.stderr)
    sys.exit(2)
