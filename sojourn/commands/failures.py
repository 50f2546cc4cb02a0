"""Prints what a command says of a failed episode: how to look at it, and how to play its task again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sojourn.terminal.clean import shell_word
from sojourn.terminal.output import CleanConsole

if TYPE_CHECKING:
    from sojourn.types import Episode


def print_failed_episode(run: Path, console: CleanConsole, query: str = "error:any") -> None:
    """Prints the commands for the failed episode that a run recorded last, of those that a query finds."""
    from sojourn.record.episodes.store import EpisodeStore
    from sojourn.terminal.episode import play_again

    with EpisodeStore(run) as store:
        for row in store.search(query, 1).rows:
            console.print(f"to see where it failed: sojourn show {shell_word(run)} {row.entry.id}", soft_wrap=True)
            again = play_again(run, store.read(row.entry).episode.task)
            console.print(f"to play that task again: {again}", soft_wrap=True)


def print_unrecorded_failure(episode: Episode, play: str, console: CleanConsole) -> None:
    """Prints the traceback of a failed episode that no run holds, and the command that plays its task again: `play`
    without the task (empty where there is no such command)."""
    if episode.traceback is not None:
        console.print(episode.traceback, soft_wrap=True)
    if play:
        console.print(f"to play that task again: {play} --task {episode.task.id}", soft_wrap=True)
