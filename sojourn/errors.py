"""One exception per boundary; every message gives the value, what was expected, and the remedy."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from functools import cache

from sojourn.secrets import masked
from sojourn.types import Ending

LONGEST_FAILURE = 4_000  # characters
LONGEST_TRACEBACK = 12_000


class SojournError(Exception):
    """Anything that Sojourn reports to its user in one sentence, without keys; the command exits with code 2."""

    def __str__(self) -> str:
        return masked(super().__str__())


class ConfigError(SojournError):
    """A key, value, name or file of the configuration cannot be used."""


class UnknownKeyError(ConfigError):
    """A table has keys that nothing takes: `keys` of the table at the dotted path `table`, of a component of `kind`."""

    def __init__(self, message: str, table: str = "", keys: Sequence[str] = (), kind: str = "") -> None:
        super().__init__(message)
        self.table = table
        self.keys = tuple(keys)
        self.kind = kind


class MissingExtraError(ConfigError):
    """A component needs a package, or a program, that is not installed."""


class ModelError(SojournError):
    """A model or tokenizer cannot be found, loaded, or used as asked."""


class RenderError(SojournError):
    """Messages cannot be put into the model's chat format."""


class RecordError(SojournError):
    """A run folder, store or checkpoint cannot be read or written."""


class QueryError(SojournError):
    """A search cannot be read: the text of the query is at fault, not what it searches."""


class InfrastructureError(SojournError):
    """The world or a server broke, not the agent: the episode is retried and never trained on."""


class RankError(InfrastructureError):
    """A process that trains the model together with others is lost, and with it what the model learned since the last
    checkpoint: the run stops, and goes on from there when it is resumed."""


class RewardError(InfrastructureError):
    """A server that a reward asks, such as that of a judge, gave no answer: the episodes that it was to judge are not
    trained on. Where it judges each alone, `episodes` names those without an answer; else they are all of the group."""

    def __init__(self, message: str, episodes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.episodes = episodes


class WorldError(InfrastructureError):
    """The world answers what no run can use, such as a reward that is no number: its code is to be mended, and no
    retry would help, so the run stops."""


class LostPlayError(InfrastructureError):
    """The process that holds a play ended, and with it all other plays that it held."""


class ActionError(SojournError):
    """The agent's action is malformed or impossible here; the world has not changed.

    Raised by `Env.step` or `Renderer.parse`. The message is written for the agent: what was said, what is expected.
    The agent's setting `malformed` decides what happens next (tell, end); the turn is always trained on.
    """

    def __str__(self) -> str:
        return Exception.__str__(self)  # what the agent reads is the same on every machine


class NoActionError(SojournError):
    """The agent took a turn that is no action of the world, such as a call of another agent. The world has not changed,
    and shows nothing new; the turn counts in the budgets of the episode."""


class BudgetError(SojournError):
    """The agent takes no further turn: the context has no room for one, or what `ending` says."""

    def __init__(self, message: str, ending: Ending = Ending.TOKENS) -> None:
        super().__init__(message)
        self.ending = ending


def leaf(error: BaseException) -> BaseException:
    """Returns the first error of a group of errors, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def cause(error: BaseException) -> str:
    """Returns one sentence that says why something failed; unless the error is one of ours, it begins with the error's
    type."""
    first = leaf(error)
    return str(first) if isinstance(first, SojournError) else masked(f"{type(first).__name__}: {first}")


def recorded(error: BaseException) -> str:
    """Returns the text of a failure for the record, without secrets, and without the middle of a long one."""
    return _shortened(masked(f"{type(error).__name__}: {_words(error)}"), LONGEST_FAILURE)


def recorded_traceback(error: BaseException) -> str:
    """Returns the traceback of a failure for the record, shortened as `recorded` shortens the error itself."""
    return _shortened(masked("".join(traceback.format_exception(leaf(error)))), LONGEST_TRACEBACK)


def failure_and_place(failure: str | None, recorded: str | None) -> str:
    """Returns the text of a recorded failure, followed by the line of the user's own code in its traceback."""
    frames = re.findall(r'^  File "(.+)", line (\d+), in (.+)$', recorded or "", re.MULTILINE)
    own = [f"{function}, {file}:{line}" for file, line, function in frames if not file.startswith(("<", *_installed()))]
    return f"{failure} ({own[-1]})" if own else str(failure)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"


def raised_at(error: BaseException) -> str:
    """Returns the function, file and line of the user's own code that raised an error; empty where none of it did."""
    known = ("<", *_installed())
    frames = [*traceback.walk_tb(leaf(error).__traceback__)][::-1]
    for frame, number in frames:
        file = frame.f_code.co_filename
        if not file.startswith(known) and frame.f_globals.get("__name__") != "__main__":
            return f"{frame.f_code.co_qualname}, {file}:{number}"
    return ""


@cache
def _installed() -> tuple[str, ...]:
    """Returns the folders of Sojourn, of Python, and of installed packages."""
    import sysconfig  # slow to import, and asked for only where something failed

    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {os.path.dirname(os.path.abspath(__file__)), *(sysconfig.get_path(kind) for kind in kinds)}
    folders |= {path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")}
    return tuple(f"{folder}{os.sep}" for folder in folders)


def describe_error(error: BaseException) -> str:
    """Returns one line that describes an error of the user's code, with the place where it was raised."""
    first = leaf(error)
    message = " ".join(_words(first).split())
    where = raised_at(first)
    return f"{type(first).__name__}{': ' * bool(message)}{message}{f' ({where})' * bool(where)}"


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # an exception of the user's, whose __str__ is theirs too
        return f"its text raises {type(broken).__name__}"
