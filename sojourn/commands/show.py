"""`sojourn show`: one run, one step or one episode in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.errors import ConfigError, RecordError
from sojourn.terminal.output import CleanConsole

if TYPE_CHECKING:
    from sojourn.record.episodes.vocabulary import Vocabulary


def show(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    episode: Annotated[str, typer.Argument(help="an episode: its id, how that begins, or stage/step/group/place")] = "",
    stage: Annotated[str, typer.Option(help="of which stage, by default the last that was trained")] = "",
    step: Annotated[int | None, typer.Option(help="the groups of this step (from 0): rewards and advantages")] = None,
    find: Annotated[str, typer.Option(help="the episodes that a query finds, such as 'refund reward:>0.5'")] = "",
    limit: Annotated[int, typer.Option(min=1, help="how many of them")] = 20,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="each sampled token of the episode with logprob and advantage")
    ] = False,
    prompt: Annotated[int | None, typer.Option(help="the exact prompt of this turn of the episode (from 1)")] = None,
    seat: Annotated[str, typer.Option(help="of which seat the prompt is, by default the first")] = "",
    full: Annotated[bool, typer.Option("--full", help="long texts to their ends")] = False,
    json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """Read a run, the groups of a step, an episode, or what a query finds."""
    from sojourn.record.run import RunFolder
    from sojourn.terminal import run as runs

    RunFolder.read(run)
    console = CleanConsole()
    if (tokens or prompt is not None or full or seat) and not episode:
        raise ConfigError("--tokens, --prompt, --seat and --full are of one episode: sojourn show runs/a EPISODE")
    if episode and (step is not None or stage or find):
        raise ConfigError("--step, --stage and --find are of a run: leave out the episode")
    if find and (step is not None or stage):
        raise ConfigError("--find says itself where to look, such as 'stage:rl step:3': leave out --step and --stage")
    if episode:
        _episode(run, episode, console, tokens, prompt, seat, full, json)
    elif find:
        _find(run, find, limit, json, console)
    elif step is not None:
        _step(run, stage, step, json, console)
    elif json:
        print(runs.as_json(run))
    else:
        console.print(runs.overview(run, console.width, stage))


def _find(run: Path, query: str, limit: int, json: bool, console: CleanConsole) -> None:
    from sojourn.terminal import find

    if json:
        print(find.matches_as_json(run, query, limit))
    else:
        console.print(find.matches(run, query, limit, console.width))


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

    record, shown = find.episode(run, name, full)
    if json:
        print(episode.as_json(record, shown.entry))
    elif prompt is not None:
        limit = None if full else sampled.PROMPT
        console.print(sampled.prompt(record, prompt, seat, shown.vocabulary or _vocabulary(run), limit))
    elif tokens:
        coloured = console.is_terminal and not console.no_color
        console.print(sampled.tokens(record, shown, coloured))
    else:
        console.print(episode.transcript(record, shown))


def _vocabulary(run: Path) -> Vocabulary:
    """Of the model that the run names, for runs that do not carry their vocabulary."""
    from sojourn.backends.torch.models import loading
    from sojourn.errors import SojournError
    from sojourn.record.run_status import read_status
    from sojourn.render import pieces
    from sojourn.render.text import Codec

    model = read_status(run).model
    try:
        return pieces.vocabulary(Codec(loading.tokenizer(model)))
    except SojournError as error:
        raise RecordError(f"{run} has no vocabulary.json, and its model's tokenizer cannot be had: {error}") from error
