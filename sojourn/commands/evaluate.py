"""`sojourn eval`: evaluates a checkpoint, an untrained model or the world's expert on a fixed panel of tasks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sojourn.commands.arguments import Overrides, load, print_risks, print_slowdowns
from sojourn.commands.failures import print_failed_episode, print_unrecorded_failure
from sojourn.errors import ConfigError
from sojourn.terminal.output import CleanConsole

if TYPE_CHECKING:
    from sojourn.protocols import Agent
    from sojourn.record.run_weights import NamedRun
    from sojourn.record.summary import Summary
    from sojourn.train.assemble import Components
    from sojourn.train.evaluation_failures import EvaluationFailures
    from sojourn.train.recipe import Recipe
    from sojourn.train.resolve import Resolved


def evaluate(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run folder, whose best checkpoint is evaluated (or another one: runs/x@120, runs/x@last, "
            "runs/x@warmup, runs/x@before), or a recipe, whose model is evaluated untrained."
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
    budgets: Annotated[
        str,
        typer.Option(
            help="With an agent that searches, such as agent.name=mcts: evaluate it with each of these numbers of "
            "tokens a play, such as 200,800, and its base without a search, side by side."
        ),
    ] = "",
    curve: Annotated[
        Path | None, typer.Option(help="A PNG to draw success against the tokens of a play to, with --budgets.")
    ] = None,
) -> None:
    """Evaluate a checkpoint, an untrained model or an expert on the tasks that every evaluation of the recipe plays."""
    from sojourn import event_loop
    from sojourn.record.run_weights import NamedRun

    extra = [f"evaluation.split={split}"] * bool(split) + ["evaluation.temperature=0.0"] * greedy
    _require_given_once(extra, overrides or [])
    named = NamedRun.parse(run)
    resolved = load(named.folder, [*extra, *(overrides or [])])
    print_risks(resolved.recipe.env)
    chosen = resolved.recipe.evaluation.split
    play = shlex.join(["sojourn", "play", str(named.folder), *(overrides or []), "--split", chosen])
    agents = _agents(resolved.recipe, budgets, expert, curve)
    event_loop.run(
        evaluate_run(resolved, named if named.folder.is_dir() else None, expert, play=play, agents=agents, curve=curve)
    )


def _require_given_once(extra: Sequence[str], overrides: Sequence[str]) -> None:
    """Refuses an override of a value that --split or --greedy gave, by that option's name."""
    given = {text.partition("=")[0].strip() for text in overrides}
    for key in (text.partition("=")[0] for text in extra):
        if key in given:
            option = "--split" if key == "evaluation.split" else "--greedy"
            raise ConfigError(
                f"{option} gives the value of '{key}', which an override gives too: leave one of them out"
            )


def _agents(recipe: Recipe, budgets: str, expert: bool, curve: Path | None) -> Mapping[str, Agent]:
    """Returns the agents to be evaluated by the names of their evaluations; none where the recipe's alone is."""
    from sojourn.plot import figure_class
    from sojourn.searchers.search import Search

    if curve is not None:
        figure_class(curve)
        if not budgets:
            raise ConfigError("--curve draws success against tokens: say with --budgets which, such as 200,800")
    if not budgets:
        return {}
    counts = [part.strip() for part in budgets.split(",")]
    if not all(count.isdecimal() and int(count) for count in counts):
        raise ConfigError(f"--budgets {budgets}: expected numbers of tokens above 0, such as 200,800")
    agent = recipe.agent
    if expert or not isinstance(agent, Search) or not recipe.evaluation.search:
        of_agent = "evaluation.search = false" if isinstance(agent, Search) else f"the agent {type(agent).__name__}"
        what = "--expert" if expert else of_agent
        raise ConfigError(
            f"--budgets {budgets}: {what} searches nothing: leave it out, or name an agent that does, such as "
            "agent.name=mcts"
        )
    return {"no search": agent.base} | {f"{count} tokens": replace(agent, tokens=int(count)) for count in counts}


class LoadedWeights(NamedTuple):
    """Says which weights were loaded, in words, and after how many steps of their run."""

    name: str
    step: int


async def evaluate_run(
    resolved: Resolved,
    run: NamedRun | None,
    expert: bool,
    progress: bool = True,
    play: str = "",
    agents: Mapping[str, Agent] | None = None,
    curve: Path | None = None,
) -> Summary:
    """Evaluates a run, or the untrained model of a recipe; without `progress`, it prints nothing.

    Failed episodes are recorded in the folder of the run. `play` is the command that plays a task of the recipe. With
    `agents`, each of these plays the tasks in place of the recipe's, and success against tokens is drawn to `curve`;
    what is returned is of the last.
    """
    from sojourn.display import Display
    from sojourn.plot_search import search_curve
    from sojourn.record.run_weights import find_weights
    from sojourn.terminal.asked import asked_sentence
    from sojourn.train.assemble import assemble
    from sojourn.train.evaluate import evaluate as play_panel
    from sojourn.train.evaluate import panel
    from sojourn.train.evaluation_failures import STAGE, EvaluationFailures
    from sojourn.train.people import require_nobody

    if not expert:
        require_nobody(resolved.recipe, "an evaluation alone")
    if progress:
        print_slowdowns(resolved.recipe)
    if run is not None:
        find_weights(*run)
    console, failures, step = CleanConsole(quiet=not progress), EvaluationFailures(), 0
    summaries: dict[str, Summary] = {}
    try:
        with Display(console=console) as display:
            async with assemble(resolved.recipe) as components:
                loaded = await load_weights(components, run, display.message)
                step, name = loaded.step, ""
                agents = agents or {"expert" if expert else loaded.name: resolved.recipe.agent}
                failures.watch(components.runner, display.episode, components.asked)
                for name, components.runner.agent in agents.items():
                    display.evaluating(name, len(panel(components)) * resolved.recipe.evaluation.samples)
                    done = await play_panel(components, STAGE, expert)
                    summaries[name] = done.summary()
                    display.evaluation(name, summaries[name])
                    judged = [e.id for group in done.groups for e in group.episodes if e.error is None]
                    if spent := asked_sentence(components.asked, judged):
                        display.message(spent)
    finally:
        if failures.episodes:
            await _keep(failures, run, step, play, console)
    if curve is not None:
        search_curve(summaries, type(resolved.recipe.agent).__name__, curve)
        console.print(f"the curve is {curve}", soft_wrap=True)
    return summaries[name]


async def _keep(
    failures: EvaluationFailures, run: NamedRun | None, step: int, play: str, console: CleanConsole
) -> None:
    """Records failed episodes in the run, and prints how to look at the last one, or its traceback where there is no
    run."""
    from sojourn.errors import RecordError
    from sojourn.train.evaluation_failures import STAGE

    if run is not None:
        try:
            await failures.record(run.folder, step)
            return print_failed_episode(run.folder, console, f"stage:{STAGE} error:any")
        except RecordError as error:
            console.print(f"note: the failed episodes are not recorded: {error}", soft_wrap=True)
    print_unrecorded_failure(list(failures.episodes.values())[-1], play, console)


async def load_weights(
    components: Components, run: NamedRun | None, report: Callable[[str], None] = lambda sentence: None
) -> LoadedWeights:
    """Gives trainer and sampler the weights of a run, or those that the recipe starts from; returns what they are."""
    from sojourn.record.run_weights import BEFORE, find_weights
    from sojourn.train import trained_models
    from sojourn.train.weights import initial_weights

    # looked for when all is open, since a run in progress deletes old checkpoints
    found = find_weights(*run, report).checkpoint if run is not None else None
    if found is None:
        await initial_weights(components)
    else:
        trained_models.load(components.trainers, found.weights)
        await trained_models.publish(components.trainers)
    step = found.step if found is not None else 0
    await components.seating.evaluate(run.folder if run is not None else None, step, components.trainer)
    return LoadedWeights(f"step {step}" if found is not None else BEFORE if run else "as it is", step)
