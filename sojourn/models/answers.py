"""The answers of models behind endpoints, in the run folder: whatever was asked once is not asked again."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.errors import RecordError
from sojourn.files import require_regular
from sojourn.models.reading import open_to_read

FILE = "answers.sqlite"  # in the run folder
ENDING_S = 30.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, model TEXT, asker TEXT, text TEXT, prompt_tokens INTEGER, sampled_tokens INTEGER,
    cost REAL, seconds REAL
)
"""


class KnownAnswer(NamedTuple):
    """An answer as it was given to `asker`, who first asked `model` (its name of `[models]`)."""

    model: str
    asker: str
    text: str
    prompt_tokens: int
    sampled_tokens: int
    cost: float
    seconds: float


class Spent(NamedTuple):
    """The tokens and the cost of a model's answers so far."""

    tokens: int
    cost: float


@dataclass
class AnswerStore:
    """Keeps answers by a key of everything that was asked: in memory, unless there is a run folder. Each is on the disk
    as soon as it is there, so that a run that is killed asks for none of them again.

    A reply without text, as of a model that thought until its tokens were spent, is no answer: what it took is kept,
    and the question is asked again."""

    folder: Path | None = None
    writes: bool = True
    awaited: set[asyncio.Task[Any]] = field(default_factory=set["asyncio.Task[Any]"])  # that will add an answer
    _opened: sqlite3.Connection | None = None
    _spent: dict[str, Spent] = field(default_factory=dict[str, Spent])  # by model, once somebody has asked

    def keep_in(self, folder: Path) -> None:
        """Keeps answers in a run folder from now on, where those of the run until now are."""
        self.close()
        self.folder = folder

    @property
    def _database(self) -> sqlite3.Connection:
        if self._opened is None:
            self._opened = _open(":memory:") if self.folder is None else _open_file(self.folder / FILE, self.writes)
        return self._opened

    def find(self, key: str) -> KnownAnswer | None:
        columns = ", ".join(KnownAnswer._fields)
        row = self._database.execute(f"SELECT {columns} FROM answers WHERE key = ?", (key,)).fetchone()
        answer = None if row is None else KnownAnswer(*row)
        return answer if answer and answer.text.strip() else None

    def add(self, key: str, answer: KnownAnswer) -> None:
        """Keeps an answer; what an earlier reply to the same question took, which was none, stays."""
        try:
            with self._database:
                self._database.execute("UPDATE answers SET key = 'no answer ' || rowid WHERE key = ?", (key,))
                marks = ", ".join("?" * (1 + len(answer)))
                self._database.execute(f"INSERT INTO answers VALUES ({marks})", (key, *answer))
        except sqlite3.Error as error:
            raise RecordError(f"an answer cannot be written ({error}): free disk space, then resume the run") from error
        if (before := self._spent.get(answer.model)) is not None:
            tokens = answer.prompt_tokens + answer.sampled_tokens
            self._spent[answer.model] = Spent(before.tokens + tokens, before.cost + answer.cost)

    def spent(self, model: str) -> Spent:
        """Returns what a model's answers have taken, those of the run before it was resumed included."""
        if model not in self._spent:  # reading all answers takes a while, where there are many
            columns = "COALESCE(SUM(prompt_tokens + sampled_tokens), 0), COALESCE(SUM(cost), 0.0)"
            found = self._database.execute(f"SELECT {columns} FROM answers WHERE model = ?", (model,)).fetchone()
            self._spent[model] = Spent(*found)
        return self._spent[model]

    async def finish(self) -> None:
        """Waits for the answers that are under way, which cost whether anybody reads them or not, for `ENDING_S` at
        most."""
        if self.awaited:
            _, late = await asyncio.wait(set(self.awaited), timeout=ENDING_S)
            for request in late:
                request.cancel()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = None
        self._spent.clear()


def earlier_answers(run: str) -> AnswerStore:
    """Returns the answers of an earlier run, to be read. Raises `RecordError` where there are none that can be read."""
    if not (Path(run) / FILE).is_file():
        raise RecordError(
            f"answers = '{run}': there is no {FILE} in it: expected the folder of a run that asked models"
        )
    with closing(_open_file(Path(run) / FILE, False)):  # whoever asks for the first one would be told too late
        return AnswerStore(Path(run), writes=False)


def has_answers(run: Path) -> bool:
    """Says whether a run folder holds answers, which were paid for."""
    if not (run / FILE).is_file() or not (run / FILE).stat().st_size:
        return False
    with closing(_open_file(run / FILE, False)) as database:
        return database.execute("SELECT 1 FROM answers LIMIT 1").fetchone() is not None


def blank(run: Path, askers: Iterable[str]) -> None:
    """Removes what models answered about episodes from a run folder, for ever; what it cost stays."""
    path = run / FILE
    if not path.is_file():
        return
    with closing(_open_file(path, True)) as database:
        database.execute("PRAGMA secure_delete = ON")
        with database:
            database.execute(
                "UPDATE answers SET key = 'removed ' || rowid, asker = '', text = '' "
                "WHERE asker IN (SELECT value FROM json_each(?))",
                (json.dumps(list(askers)),),
            )
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _open_file(path: Path, writes: bool) -> sqlite3.Connection:
    try:
        if not writes:
            require_regular(path)
            database = open_to_read(path)
            try:
                database.execute("SELECT 1 FROM answers LIMIT 1").fetchone()
            except sqlite3.Error:
                database.close()
                raise
            return database
        path.touch(0o600)  # where it is new: for its owner alone
        require_regular(path)
        return _open(str(path))
    except (OSError, sqlite3.Error) as error:
        raise RecordError(
            f"{path} cannot be used ({error}): restore it from a copy, or remove it, and what was answered so far is "
            "asked again"
        ) from error


def _open(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(SCHEMA)
    except sqlite3.Error:
        database.close()
        raise
    return database
