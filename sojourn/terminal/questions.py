"""Shows the questions of agents to a person in the terminal, and takes the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from sojourn.errors import RecordError
from sojourn.models.questions import Question, Questions
from sojourn.record.run_status import locked
from sojourn.terminal.clean import clean, one_line
from sojourn.terminal.indented import Indented

SHOWN = 8_000  # characters of one message
HELP = "write an answer in one line; an empty line leaves the question open; Ctrl-D leaves"


def as_json(folder: Path) -> str:
    """Returns the open questions as JSON."""
    return json.dumps(
        [
            {
                "key": one.key,
                "episode": one.episode,
                "question": one.text,
                "left_s": round(one.left_s, 1),
                "conversation": [{"role": str(message.role), "text": message.text} for message in one.conversation],
            }
            for one in Questions(folder).open()
        ],
        indent=1,
    )


def answer_all(folder: Path, console: Console, stream: TextIO | None = None) -> int:
    """Shows the open questions one by one, those too that are asked meanwhile, and returns how many were answered.
    `stream` is read instead of the terminal."""
    questions, skipped, answered = Questions(folder), set[str](), 0
    while one := next((one for one in questions.open() if one.key not in skipped), None):
        _show(one, folder, console)
        text = _line(console, stream)
        if text is None:
            break
        skipped.add(one.key)
        if text:
            try:
                questions.answer(one.key, text)
                answered += 1
            except RecordError as error:
                console.print(Text(str(error), "red"))
    else:
        if not skipped:
            console.print(_none(folder, questions), soft_wrap=True)
    return answered


def _none(folder: Path, questions: Questions) -> str:
    given, unanswered = questions.counts()
    goes_on = "" if locked(folder) else "; its run does not go on at present"
    return f"no question is open in {folder}: {given} answered by people, {unanswered} by nobody in time{goes_on}"


def _show(one: Question, folder: Path, console: Console) -> None:
    waits = f"waits {one.left_s:.0f} s more" if locked(folder) else "its run does not go on at present"
    console.print(Text(f"{one_line(one.episode)} {waits}", "bold"), soft_wrap=True)
    for message in one.conversation[:-1]:
        console.print(Text(str(message.role), "magenta"))
        console.print(Indented(Text(clean(message.text, SHOWN), "dim")))
    console.print(Text("the question", "bold magenta"))
    console.print(Indented(Text(clean(one.text, SHOWN))))
    console.print(Text(HELP, "dim"), soft_wrap=True)


def _line(console: Console, stream: TextIO | None) -> str | None:
    """Returns a line of the person's, or None at the end of the input."""
    try:
        line = console.input(Text("> ", style="bold green"), stream=stream)
    except EOFError:
        return None
    return None if stream is not None and line == "" else line.strip()
