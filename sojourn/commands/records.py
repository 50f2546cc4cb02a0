"""`sojourn export` and `sojourn replay`: a model or recorded episodes in other formats, and actions played again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sojourn import threads
from sojourn.errors import ConfigError
from sojourn.terminal.clean import one_line

if TYPE_CHECKING:
    from sojourn.record.episodes.episode_row import EpisodeRow
    from sojourn.record.export.selection import SelectedEpisodes, Selection
    from sojourn.replay import Replayed

MAX_LEFT_OUT = 5  # omissions that are printed

Run = Annotated[Path, typer.Argument(help="A run folder.")]
Episodes = Annotated[
    list[str] | None,
    typer.Argument(help="Episodes: their ids, the beginnings of ids, or their addresses stage:step/group/place."),
]
Where = Annotated[str, typer.Option(help="Take the episodes that match a query, such as 'stage:rl success:yes'.")]


def export(
    run: Annotated[
        Path, typer.Argument(help="A run folder; for models also runs/x@120 or runs/x@warmup, which name a checkpoint.")
    ],
    episodes: Episodes = None,
    format: Annotated[
        str, typer.Option(help="Of episodes: prov, adp, chat or parquet. Of the model: hf, merged, lora or gguf.")
    ] = "chat",
    out: Annotated[
        Path | None, typer.Option(help="The file (of a model: the folder) to write, which must not exist.")
    ] = None,
    where: Where = "",
    tokens: Annotated[
        bool, typer.Option("--tokens", help="With chat: include all tokens, for exact training.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="Of a model: its numbers are written as fp32 or bf16.")] = "",
    model: Annotated[
        str, typer.Option(help="Of models: another than the policy that learned in the run, by its name.")
    ] = "",
) -> None:
    """Export the model for transformers, peft or llama.cpp; or episodes as W3C PROV, Agent Data Protocol, chat messages
    or Parquet."""
    from sojourn.record.export import FORMATS

    if format in FORMATS:
        if "@" in run.name and not run.exists():
            raise ConfigError(
                f"{run}: '@' names weights, which only the formats of models take: for episodes (--format {format}) "
                f"give the run folder, {run.with_name(run.name.partition('@')[0])}, and --where step:9 for one step"
            )
        if model:
            raise ConfigError(f"--model is of models, not of episodes, which {format} holds: leave it out")
        if dtype:
            raise ConfigError(f"--dtype is of models, not of episodes, which {format} holds: leave it out")
        _export_episodes(run, format, out, _Chosen(episodes, where, tokens))
    elif episodes or where or tokens:
        raise ConfigError(
            f"episodes are exported as {', '.join(FORMATS)}, not as '{format}': choose one of these, or leave "
            "episodes, --where and --tokens out to export the model"
        )
    else:
        _export_model(run, format, out, dtype, model)


def _export_model(run: Path, format: str, out: Path | None, dtype: str, model: str) -> None:
    from sojourn.model_export import better_weights, export_model

    if out is None:
        raise ConfigError("--out is missing: name the folder to write, such as --out my-model")
    threads.prepare()
    name = export_model(run, out, format, dtype or "fp32", model or "policy")
    print(f"written: {out}, the weights '{name}' as {format}, with a model card: {out / 'README.md'}")
    if sentence := better_weights(run):
        print(f"note: {one_line(sentence, 500)}", file=sys.stderr)


class _Chosen(NamedTuple):
    """Holds which episodes a command line names."""

    episodes: list[str] | None
    where: str
    tokens: bool


def _export_episodes(run: Path, format: str, out: Path | None, chosen: _Chosen) -> None:
    from sojourn.record.export import export as write
    from sojourn.record.export import format_of
    from sojourn.terminal.run import collect_warnings

    suffix = format_of(format).SUFFIX
    if out is None:
        raise ConfigError(f"--out is missing: name the file to write, such as --out episodes{suffix}")
    if chosen.tokens and format != "chat":
        raise ConfigError(
            f"--tokens needs --format chat: {format} {'has digests only' if format == 'prov' else 'always has tokens'}"
        )
    problems: list[str] = []
    with collect_warnings(problems):
        written = write(run, out, format, _choice(run, *chosen))
    _print_notes(problems)
    records = _counted(written.records, written.unit)
    print(f"written: {out}, {_counted(written.episodes, 'episode')} as {records} of the format {format}")
    for sentence in written.left_out[:MAX_LEFT_OUT]:
        print(f"left out: {one_line(sentence, 500)}", file=sys.stderr)
    if len(written.left_out) > MAX_LEFT_OUT:
        print(f"left out: {len(written.left_out) - MAX_LEFT_OUT} more", file=sys.stderr)


def _print_notes(problems: list[str]) -> None:
    for sentence in problems:
        print(f"note: {one_line(sentence, 500)}", file=sys.stderr)


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}{'s' * (count != 1)}"


def _choice(run: Path, episodes: list[str] | None, where: str, tokens: bool = False) -> Selection:
    from sojourn.record.episodes.store import EpisodeStore
    from sojourn.record.export.selection import Selection
    from sojourn.record.run import RunFolder

    if not episodes:
        return Selection(where=where, tokens=tokens)
    from sojourn.terminal.find import find_episode

    if where:
        raise ConfigError("--where cannot be combined with named episodes: leave one of them out")
    with EpisodeStore(RunFolder.read(run).path) as store:
        ids = tuple(dict.fromkeys(find_episode(store, name).id for name in episodes))
    return Selection(episodes=ids, tokens=tokens)


def replay(
    run: Run,
    episodes: Episodes = None,
    all: Annotated[bool, typer.Option("--all", help="Replay every episode.")] = False,
    sample: Annotated[int, typer.Option(min=0, help="Replay this number of episodes, spread over the run.")] = 0,
    where: Where = "",
) -> None:
    """Play recorded actions again, and check that the environment answers as it did. The exit code is 1 if it does
    not."""
    from sojourn import event_loop
    from sojourn.record.export.selection import SelectedEpisodes
    from sojourn.record.run import RunFolder
    from sojourn.terminal.run import collect_warnings

    ways = bool(episodes) + all + bool(sample)
    if ways > 1 or not (ways or where):
        raise ConfigError(
            "choose the episodes to replay in one way: name them, or give --sample 20, --all, or --where with a query"
        )
    problems: list[str] = []
    with collect_warnings(problems), SelectedEpisodes.of(RunFolder.read(run), _choice(run, episodes, where)) as chosen:
        same = event_loop.run(_replay(chosen, sample))
    _print_notes(problems)
    if not same:
        raise typer.Exit(1)


async def _replay(chosen: SelectedEpisodes, sample: int) -> bool:
    """Replays the chosen episodes, and returns whether at least one was replayed and none differs."""
    from sojourn.replay import Verdict, replay

    counts: dict[Verdict, int] = dict.fromkeys(Verdict, 0)
    async for done in replay(chosen.run, chosen.store.read_each(_spread(chosen, sample))):
        counts[done.verdict] += 1
        if done.verdict is not Verdict.SAME or chosen.selection.episodes:
            print(one_line(_line(done), 1000), flush=True)
    same, differ, failed = (counts[verdict] for verdict in Verdict)
    if same + differ + failed > 1:
        rest = f"; {failed} could not be replayed" if failed else ""
        print(f"{same} of {same + differ} episodes gave the same observations and rewards{rest}")
    return same > 0 and not differ


def _line(done: Replayed) -> str:
    from sojourn.replay import Verdict

    if done.verdict is Verdict.SAME:
        return f"{done.episode}: same observations and rewards in {_counted(done.turns, 'turn')}"
    return f"{done.episode}: {'differs' if done.verdict is Verdict.DIFFERS else 'not replayed'}: {done.difference}"


def _spread(chosen: SelectedEpisodes, sample: int) -> Iterator[EpisodeRow]:
    """Yields all chosen episodes, or `sample` of them, evenly spread."""
    if not sample:
        return chosen.entries()
    count = sum(1 for _ in chosen.entries())
    return (entry for n, entry in enumerate(chosen.entries()) if n * sample // count != (n - 1) * sample // count)
