"""A person who is asked by agents of a run, in the place of a model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sojourn.errors import ConfigError
from sojourn.models.answers import AnswerStore
from sojourn.models.asking import Answer
from sojourn.models.questions import Questions, Reply, key_of
from sojourn.types import Message

PERSON = "person"  # the name of whom agents ask, among the models of a run
POLL_S = 0.5  # between two looks for an answer


class Patience(NamedTuple):
    """For how long an agent waits for a person's answer, and what it is told when there is none by then."""

    wait_s: float
    unanswered: str


@dataclass(frozen=True)
class AskedPerson:
    """A person, who finds questions in the folder of the run, which is that of its `answers`.

    What was replied to a question is kept there, and told again to a run that is resumed and asks it again: also that
    nobody answered. Without any time to wait nothing is put there.
    """

    patience: Patience
    answers: AnswerStore

    async def ask(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, asker: str = ""
    ) -> Answer:
        began, (wait_s, unanswered) = time.monotonic(), self.patience
        if self.answers.folder is None:
            if not wait_s:
                return Answer(unanswered, 0, 0, unanswered=True)
            raise ConfigError(
                "an agent asks a person, who answers in the folder of a run, and there is none here: set wait_s of "
                "ask_person to 0"
            )
        questions, key = Questions(self.answers.folder), key_of(asker, messages, seed)
        reply = questions.reply(key)
        known = reply is not None
        if reply is None:
            reply = await self._awaited(questions, key, asker, messages) if wait_s else Reply(unanswered, False)
        return Answer(reply.text, 0, 0, time.monotonic() - began, cached=known, unanswered=not reply.given)

    async def _awaited(self, questions: Questions, key: str, asker: str, messages: Sequence[Message]) -> Reply:
        """Returns what is replied to a question in time. A run that is stopped meanwhile hides it."""
        deadline = time.monotonic() + self.patience.wait_s
        questions.put(key, asker, messages, self.patience.wait_s)
        try:
            while (reply := questions.reply(key)) is None:
                if (left_s := deadline - time.monotonic()) <= 0:
                    return questions.close(key, self.patience.unanswered)
                await asyncio.sleep(min(POLL_S, left_s))
        except asyncio.CancelledError:
            questions.withdraw(key)
            raise
        return reply
