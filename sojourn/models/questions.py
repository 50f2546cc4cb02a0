"""The questions to people in a run folder: agents put them there, and people find them there and answer."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.errors import RecordError
from sojourn.files import require_regular
from sojourn.models.reading import BUSY_S, open_to_read
from sojourn.types import Message, Role

FILE = "questions.sqlite"  # in the run folder
MOST_CHARACTERS = 4_000  # of an answer
SCHEMA = """
CREATE TABLE IF NOT EXISTS questions (
    key TEXT PRIMARY KEY, episode TEXT NOT NULL, conversation TEXT NOT NULL, asked REAL NOT NULL, until REAL NOT NULL,
    answer TEXT, given INTEGER NOT NULL DEFAULT 0
)
"""
COLUMNS = "key, episode, conversation, asked, until"


class Question(NamedTuple):
    """A question of an agent that nobody has answered: its episode, all that the agent was shown and said there, of
    which the question is the last message, and from when until when it is open (in seconds since the epoch)."""

    key: str
    episode: str
    conversation: tuple[Message, ...]
    asked: float
    until: float

    @property
    def text(self) -> str:
        return self.conversation[-1].text if self.conversation else ""

    @property
    def left_s(self) -> float:
        """Returns for how many seconds it can still be answered."""
        return max(0.0, self.until - time.time())


class Reply(NamedTuple):
    """Says what an agent was told: `given` by a person, or in the place of an answer that did not come."""

    text: str
    given: bool


def key_of(episode: str, conversation: Sequence[Message], seed: int) -> str:
    """Returns the key of a question. It is the same in a run that is resumed and plays the episode again."""
    texts = [[str(message.role), message.text] for message in conversation]
    content = json.dumps([episode, texts, seed])
    return hashlib.sha256(content.encode(errors="backslashreplace")).hexdigest()[:32]


@dataclass(frozen=True)
class Questions:
    """The questions of the run in `folder`. Each is closed once: by a person's answer, or for want of one. Every call
    opens the file anew, as the run, a viewer and commands use it at the same time."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / FILE

    def put(self, key: str, episode: str, conversation: Sequence[Message], wait_s: float) -> None:
        """Opens a question for `wait_s` seconds; one that is there stays what it is, and is open as long again."""
        said = json.dumps([[str(one.role), one.text] for one in conversation])
        now = time.time()
        with self._writing() as database:
            database.execute(
                f"INSERT INTO questions ({COLUMNS}) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET asked = excluded.asked, until = excluded.until WHERE answer IS NULL",
                (key, episode, said, now, now + wait_s),
            )

    def reply(self, key: str) -> Reply | None:
        """Returns what was replied to a question; None where that is open, or was never asked."""
        rows = self._read("SELECT answer, given FROM questions WHERE key = ? AND answer IS NOT NULL", key)
        return Reply(rows[0][0], bool(rows[0][1])) if rows else None

    def close(self, key: str, unanswered: str) -> Reply:
        """Closes a question, unless it was answered in the meantime, and returns what was replied to it."""
        with self._writing() as database:
            database.execute("UPDATE questions SET answer = ? WHERE key = ? AND answer IS NULL", (unanswered, key))
        return self.reply(key) or Reply(unanswered, False)

    def withdraw(self, key: str) -> None:
        """Hides a question for whose answer nobody waits any more, until it is asked again."""
        with self._writing() as database:
            database.execute("UPDATE questions SET until = 0 WHERE key = ? AND answer IS NULL", (key,))

    def open(self) -> list[Question]:
        """Returns the questions that can be answered now, those that were asked first at the beginning."""
        statement = f"SELECT {COLUMNS} FROM questions WHERE answer IS NULL AND until > ? ORDER BY asked, key"
        return [self._question(*row) for row in self._read(statement, time.time())]

    def counts(self) -> tuple[int, int]:
        """Returns how many questions people answered, and how many nobody did in time."""
        given = [given for (given,) in self._read("SELECT given FROM questions WHERE answer IS NOT NULL")]
        return sum(given), len(given) - sum(given)

    def answer(self, key: str, text: str) -> None:
        """Answers a question. Raises `RecordError` where it is not open, or the text is no answer."""
        text = text.replace("\r\n", "\n").encode(errors="replace").decode().strip()
        if not text or len(text) > MOST_CHARACTERS:
            raise RecordError(
                f"an answer has {len(text):,} characters: expected at least one and at most {MOST_CHARACTERS:,}"
            )
        if not self.path.is_file():
            raise RecordError(f"{self.folder} has no questions: expected the folder of a run whose agents ask people")
        with self._writing() as database:
            done = database.execute(
                "UPDATE questions SET answer = ?, given = 1 WHERE key = ? AND answer IS NULL AND until > ?",
                (text, key, time.time()),
            )
            if not done.rowcount:
                raise RecordError(
                    "this question is not open any more: it was answered, its time is over, or nobody waits for it"
                )

    def blank(self, episodes: Iterable[str]) -> None:
        """Removes what was asked and answered in some episodes for ever."""
        if not self.path.is_file():
            return
        with self._writing() as database:
            database.execute(
                "DELETE FROM questions WHERE episode IN (SELECT value FROM json_each(?))", (json.dumps(list(episodes)),)
            )
        with closing(_connected(self.path)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _question(self, key: str, episode: str, conversation: str, asked: float, until: float) -> Question:
        try:
            said = tuple(Message(Role(role), text) for role, text in json.loads(conversation))
        except (ValueError, TypeError) as error:
            raise RecordError(f"{self.path} is damaged ({error}): remove it, and open questions are asked again") from (
                error
            )
        return Question(key, episode, said, asked, until)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Writes all or nothing, into a file for its owner alone."""
        try:
            if not self.path.exists():
                self.path.touch(0o600)
            require_regular(self.path)
            with closing(_connected(self.path)) as database, database:
                database.execute(SCHEMA)
                yield database
        except (OSError, sqlite3.Error) as error:
            raise RecordError(f"{self.path} cannot be written ({error}): free disk space, or restore it") from error

    def _read(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Returns the rows of a statement; none where nothing was asked yet."""
        if not self.path.exists():
            return []
        try:
            require_regular(self.path)
            with closing(open_to_read(self.path)) as database:
                made = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'questions'").fetchone()
                return database.execute(statement, values).fetchall() if made else []
        except (OSError, sqlite3.Error) as error:
            raise RecordError(
                f"{self.path} cannot be read ({error}): remove it, and open questions are asked again"
            ) from error


def _connected(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=BUSY_S)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("PRAGMA secure_delete = ON")
    return database
