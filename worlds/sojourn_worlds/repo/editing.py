"""Changes of files that an agent makes by actions, the same in every play that has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sojourn.envs.calls import LONGEST_ACTION
from sojourn.errors import ActionError

MAX_FILE_CHARS = 20_000  # characters


class Edit(NamedTuple):
    """A file and its new text."""

    name: str
    text: str


def split(action: str) -> tuple[list[str], str]:
    """Returns the words of an action's first line, and the text after that line; raises `ActionError` where the action
    is too long."""
    text = action.strip("\n")
    if len(text) > LONGEST_ACTION:
        raise ActionError(f"{len(text)} characters are too many, say at most {LONGEST_ACTION}")
    head, _, body = text.partition("\n")
    return head.split(), body


def edit_of(words: list[str], body: str, files: Mapping[str, str]) -> Edit | None:
    """Returns what an action changes, None where it is no change; raises `ActionError` where it cannot be made."""
    match words:
        case ["replace", name, lines]:
            return _checked(name, _replaced(name, file_of(name, files, "change"), lines, _plain(body)))
        case ["write", name]:
            file_of(name, files, "change")
            return _checked(name, f"{_plain(body)}\n" if body else "")
        case _:
            return None


def after(files: Mapping[str, str], actions: Iterable[str]) -> dict[str, str]:
    """Returns the files as these actions leave them; those that cannot be made change nothing."""
    now = dict(files)
    for action in actions:
        try:
            edit = edit_of(*split(action), now)
        except ActionError:
            continue
        if edit is not None:
            now[edit.name] = edit.text
    return now


def file_of(name: str, files: Mapping[str, str], verb: str) -> str:
    """Returns the text of a file; raises `ActionError` where there is none of this name."""
    if name not in files:
        raise ActionError(f'there is no file "{name[:40]}" to {verb}, use one of {", ".join(files)}')
    return files[name]


def numbered(text: str) -> str:
    """Returns a file as it is read: each line after its number."""
    return "\n".join(f"{number} {line}" for number, line in enumerate(text.splitlines(), 1)) or "(empty)"


def _replaced(name: str, text: str, lines: str, body: str) -> str:
    old = text.splitlines()
    numbers = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", lines, re.ASCII)
    first, last = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (0, 0)
    if not 1 <= first <= last <= len(old) + 1:
        raise ActionError(f'"{lines[:20]}" are no lines of {name}, which has 1 to {len(old)}, say as in 3-5')
    new = [*old[: first - 1], *(body.split("\n") if body else []), *old[last:]]
    return "".join(f"{line}\n" for line in new)


def _checked(name: str, text: str) -> Edit:
    if len(text) > MAX_FILE_CHARS:
        raise ActionError(f"{name} would have {len(text)} characters, but {MAX_FILE_CHARS} is the most")
    return Edit(name, text)


def _plain(body: str) -> str:
    """Returns the text without the code fence around it."""
    fenced = re.fullmatch(r"```\w*\n(.*?)\n?```\s*", body, re.DOTALL)
    return fenced[1] if fenced else body
