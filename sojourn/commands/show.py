"""`sojourn show`: prints a run, a step, an episode, or the parts of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.errors import ConfigError, RecordError
from sojourn.terminal.output import CleanConsole

if TYPE_CHECKING:
    from sojourn.record.episodes.vocabulary import Vocabulary


def show(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    episode: Annotated[
        str, typer.Argument(help="An episode: its id, the beginning of its id, or its address stage:step/group/place.")
    ] = "",
    stage: Annotated[str, typer.Option(help="The stage to show. (default: the last one that was trained)")] = "",
    step: Annotated[int | None, typer.Option(help="Show the groups of this step (counted from 0).")] = None,
    find: Annotated[str, typer.Option(help="Show the episodes that match a query, such as 'refund reward:>0.5'.")] = "",
    limit: Annotated[
        int | None, typer.Option(min=1, help="With --find: the maximum number of episodes. (default: 20)")
    ] = None,
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="Show each sampled token of the episode with log-probability and advantage."),
    ] = False,
    prompt: Annotated[int | None, typer.Option(help="Show the exact prompt of this turn (counted from 1).")] = None,
    seat: Annotated[
        str, typer.Option(help="With --prompt: the seat whose prompt is shown. (default: the first one)")
    ] = "",
    full: Annotated[bool, typer.Option("--full", help="Do not shorten long texts.")] = False,
    parts: Annotated[
        bool, typer.Option("--parts", help="Show what each sampler, trainer rank and environment worker does.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Print a run, the groups of a step, an episode, the episodes that match a query, or the parts of the run."""
    from sojourn.record.run import RunFolder
    from sojourn.terminal import run as runs

    RunFolder.read(run)
    console = CleanConsole()
    if (tokens or prompt is not None or full or seat) and not episode:
        raise ConfigError("--tokens, --prompt, --seat and --full need an episode: sojourn show runs/a EPISODE")
    if episode and (step is not None or stage or find):
        raise ConfigError("--step, --stage and --find show several episodes: leave them out, or leave out the episode")
    if find and (step is not None or stage):
        raise ConfigError(
            "--step and --stage cannot be combined with --find: put them into the query, such as 'stage:rl step:3'"
        )
    if seat and prompt is None:
        raise ConfigError(f"--seat {seat} says whose prompt is shown: add --prompt 1, or leave out --seat")
    if (prompt is not None) + tokens + json > 1:
        raise ConfigError("--prompt, --tokens and --json show an episode in three ways: choose one of them")
    if limit is not None and not find:
        raise ConfigError(f"--limit {limit} limits what --find shows: add --find with a query, or leave out --limit")
    if parts and (episode or step is not None or stage or find):
        raise ConfigError("--parts shows the parts of the whole run: leave out the episode, --step, --stage and --find")
    if stage:
        runs.require_stage(run, stage)
    if episode:
        _episode(run, episode, console, tokens, prompt, seat, full, json)
    elif find:
        _find(run, find, limit or 20, json, console)
    elif step is not None:
        _step(run, stage, step, json, console)
    elif parts:
        _parts(run, json, console)
    else:
        _overview(run, stage, json, console)


def _overview(run: Path, stage: str, json: bool, console: CleanConsole) -> None:
    from sojourn.terminal import run as runs

    if json:
        print(runs.as_json(run, stage))
    else:
        console.print(runs.overview(run, console.width, stage))


def _find(run: Path, query: str, limit: int, json: bool, console: CleanConsole) -> None:
    from sojourn.terminal import find

    if json:
        print(find.search_json(run, query, limit))
    else:
        console.print(find.search_table(run, query, limit, console.width))


def _parts(run: Path, json: bool, console: CleanConsole) -> None:
    from sojourn.terminal import parts

    if json:
        print(parts.as_json(run))
    else:
        console.print(parts.tables(run, console.width))


def _step(run: Path, stage: str, step: int, json: bool, console: CleanConsole) -> None:
    from sojourn.record.run_status import read_status
    from sojourn.terminal import step as steps

    chosen = stage or read_status(run).stage
    if json:
        print(steps.as_json(run, chosen, step))
    else:
        console.print(steps.table(run, chosen, step, console.width))


def _episode(
    run: Path, name: str, console: CleanConsole, tokens: bool, prompt: int | None, seat: str, full: bool, json: bool
) -> None:
    from sojourn.terminal import episode, find
    from sojourn.terminal import tokens as sampled

    record, context = find.load_episode(run, name, full)
    if json:
        print(episode.as_json(record, context.entry))
    elif prompt is not None:
        limit = None if full else sampled.MAX_PROMPT
        console.print(sampled.prompt(record, prompt, seat, context.vocabulary or _vocabulary(run), limit))
    elif tokens:
        coloured = console.is_terminal and not console.no_color
        console.print(sampled.tokens(record, context, coloured))
    else:
        console.print(episode.transcript(record, context))


def _vocabulary(run: Path) -> Vocabulary:
    """Returns the vocabulary of the run's model, for run folders without a vocabulary.json."""
    from sojourn.backends.torch.models import loading
    from sojourn.errors import SojournError
    from sojourn.record.run_status import read_status
    from sojourn.render import pieces
    from sojourn.render.text import Codec

    model = read_status(run).model
    try:
        return pieces.vocabulary(Codec(loading.tokenizer(model)))
    except SojournError as error:
        raise RecordError(
            f"{run} has no vocabulary.json, and its model's tokenizer cannot be loaded: {error}"
        ) from error
