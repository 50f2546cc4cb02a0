"""`sojourn export` and `sojourn replay`: what was recorded, in other formats, and played again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn import event_loop
from sojourn.errors import ConfigError
from sojourn.terminal.clean import line

if TYPE_CHECKING:
    from sojourn.record.episodes.episode_row import EpisodeRow
    from sojourn.record.export.selection import SelectedEpisodes, Selection
    from sojourn.replay import Replayed

SHOWN = 5  # of what was left out

Run = Annotated[Path, typer.Argument(help="a run folder")]
Episodes = Annotated[
    list[str] | None, typer.Argument(help="ids of episodes, how these begin, or stage/step/group/place")
]
Where = Annotated[str, typer.Option(help="those that a search finds, such as 'stage:rl success:yes'")]


def export(
    run: Run,
    episodes: Episodes = None,
    format: Annotated[str, typer.Option(help="prov, adp, chat or parquet")] = "chat",
    out: Annotated[Path | None, typer.Option(help="the file to write, which must not exist")] = None,
    where: Where = "",
    tokens: Annotated[bool, typer.Option("--tokens", help="chat: with every token, to be trained on exactly")] = False,
) -> None:
    """Write episodes as W3C PROV, Agent Data Protocol, chat messages or Parquet."""
    from sojourn.record.export import export as write
    from sojourn.record.export import format_of

    format_of(format)
    if out is None:
        raise ConfigError(f"--out is missing: name the file to write, such as --out episodes.{format}")
    if tokens and format != "chat":
        raise ConfigError(f"--tokens is for --format chat: {format} holds {'digests' if format == 'prov' else 'them'}")
    done = write(run, out, format, _choice(run, episodes, where, tokens))
    print(f"{out}: {_counted(done.episodes, 'episode')}, {_counted(done.records, done.unit)}")
    for sentence in done.left_out[:SHOWN]:
        print(f"left out: {line(sentence, 500)}", file=sys.stderr)
    if len(done.left_out) > SHOWN:
        print(f"left out: {len(done.left_out) - SHOWN} more", file=sys.stderr)


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}{'s' * (count != 1)}"


def _choice(run: Path, episodes: list[str] | None, where: str, tokens: bool = False) -> Selection:
    from sojourn.record.episodes.store import EpisodeStore
    from sojourn.record.export.selection import Selection
    from sojourn.record.run import RunFolder
    from sojourn.terminal.find import found

    if episodes and where:
        raise ConfigError("episodes that are named need no --where: leave it out")
    with EpisodeStore(RunFolder.read(run).path) as store:
        ids = tuple(found(store, name).id for name in episodes or ())
    return Selection(episodes=ids, where=where, tokens=tokens)


def replay(
    run: Run,
    episodes: Episodes = None,
    all: Annotated[bool, typer.Option("--all", help="every episode")] = False,
    sample: Annotated[int, typer.Option(min=0, help="so many, spread over the run")] = 0,
    where: Where = "",
) -> None:
    """Play recorded actions again: does the world answer as it did? Exit code 1 where it does not."""
    from sojourn.record.export.selection import SelectedEpisodes
    from sojourn.record.run import RunFolder

    if bool(episodes) + all + bool(sample) != 1:
        raise ConfigError("say which episodes: their ids, --sample 20, or --all")
    with SelectedEpisodes.of(RunFolder.read(run), _choice(run, episodes, where)) as chosen:
        if not event_loop.run(_replay(chosen, sample)):
            raise typer.Exit(1)


async def _replay(chosen: SelectedEpisodes, sample: int) -> bool:
    """Whether something was played again, and all of it went the same way."""
    from sojourn.replay import Verdict, replay

    found: dict[Verdict, int] = dict.fromkeys(Verdict, 0)
    async for done in replay(chosen.run, chosen.store.read_each(_spread(chosen, sample))):
        found[done.verdict] += 1
        if done.verdict is not Verdict.SAME or chosen.selection.episodes:
            print(line(_line(done), 1000), flush=True)
    same, differ, nothing = (found[verdict] for verdict in Verdict)
    if same + differ + nothing > 1:
        rest = f"; {nothing} could not be played again" if nothing else ""
        print(f"{same} of {same + differ} episodes went the same way{rest}")
    return same > 0 and not differ


def _line(done: Replayed) -> str:
    from sojourn.replay import Verdict

    if done.verdict is Verdict.SAME:
        return f"{done.episode}: went the same way, {_counted(done.turns, 'turn')}"
    return f"{done.episode}: {'differs' if done.verdict is Verdict.DIFFERS else 'not played again'}: {done.difference}"


def _spread(chosen: SelectedEpisodes, sample: int) -> Iterator[EpisodeRow]:
    """All that are chosen, or so many of them, evenly spread."""
    if not sample:
        return chosen.entries()
    count = sum(1 for _ in chosen.entries())
    return (entry for n, entry in enumerate(chosen.entries()) if n * sample // count != (n - 1) * sample // count)
