"""`sojourn answer`: lets a person answer the questions of a run's agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.terminal.output import CleanConsole


def answer(
    run: Annotated[Path, typer.Argument(help="The folder of a run whose agent is ask_person.")],
    json: Annotated[bool, typer.Option("--json", help="Print the open questions as JSON, and answer none.")] = False,
) -> None:
    """Answer the questions that agents ask a person: each is shown with the episode so far, and a line is read."""
    from sojourn.record.run import RunFolder
    from sojourn.terminal import questions

    folder = RunFolder.read(run).path
    if json:
        print(questions.as_json(folder))
        return
    console = CleanConsole()
    if count := questions.answer_all(folder, console):
        console.print(f"answered: {count}")
