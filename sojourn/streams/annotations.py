"""Labels of messages by a model that is asked beside the play, and that are used from a fixed step on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from sojourn.errors import InfrastructureError
from sojourn.models.asking import AskedModels
from sojourn.rewards.judgements import AGAIN, together
from sojourn.seeds import seed_of
from sojourn.types import Message, Role

ENDING = "\nEnd your answer with a line that says {first} or {second}, and nothing else."
FEW = 3  # questions of a step that may have no readable answer in any case

Question = tuple[str, ...]  # the message that a question is about, or the two messages that it compares


@dataclass(frozen=True)
class Annotator:
    """The model `model`, which labels messages by one of two `answers`: the first is the label 1, the second 0. `text`
    writes a question. The label is what its answer ends with, or, with `verdict` = "likelihood", the likelier of the
    two. An answer that ends with neither is asked for again, up to `retries` times."""

    model: str
    answers: tuple[str, str]
    text: Callable[[Question], str]
    verdict: Literal["written", "likelihood"]
    max_tokens: int
    retries: int

    async def label(self, models: AskedModels, about: Question, episode: str, purpose: str) -> float | None:
        """Returns the label, None where no answer could be read. What is asked is kept by `models`."""
        text = self.text(about)
        if self.verdict == "likelihood":
            first, second = await models.weigh(
                self.model,
                [Message(Role.USER, text)],
                self.answers,
                seed=seed_of("annotator", text) % 2**31,
                about=(episode,),
                purpose=purpose,
            )
            return float(first > second)
        text += ENDING.format(first=self.answers[0], second=self.answers[1])
        for attempt in range(self.retries + 1):
            answer = await models.ask(
                self.model,
                [Message(Role.USER, text)],
                max_tokens=self.max_tokens,
                temperature=AGAIN if attempt else 0.0,
                seed=seed_of("annotator", text, attempt) % 2**31,  # some servers take no larger ones
                about=(episode,),
                purpose=purpose + f", attempt {attempt + 1}" * bool(attempt),
            )
            if (label := self.read(answer.text)) is not None:
                return label
        return None

    def read(self, answer: str) -> float | None:
        """Returns the label that an answer ends with, None where it ends with neither."""
        last = answer.strip().rpartition("\n")[2].strip(" \t*_`'\".").lower()
        labels = {self.answers[0].lower(): 1.0, self.answers[1].lower(): 0.0}
        return labels.get(last)


class Ask(NamedTuple):
    """Holds what is to be asked, and the episode that showed its newest message."""

    about: Question
    episode: str


class Labels(NamedTuple):
    """The labels of messages, and how many questions had no readable answer."""

    of: Mapping[Question, float]
    unreadable: int = 0


@dataclass
class _Batch:
    """Holds what is asked after one step. The record of it stays with the batch until its labels are used, as it would
    otherwise depend on how fast the model is."""

    asks: Sequence[Ask]
    asked: AskedModels
    task: asyncio.Task[list[float | None]] | None = None


@dataclass
class Annotations:
    """Asks the annotator about the messages of each step while the next steps are played and trained.

    The answers are waited for when they are due, so that what is labelled by which step depends on neither the model's
    speed nor a restart: what a restored run had not been answered yet, it asks again.
    """

    annotator: Annotator
    models: AskedModels
    _batches: deque[_Batch] = field(default_factory=deque["_Batch"])  # oldest first

    def ask(self, asks: Sequence[Ask]) -> None:
        """Begins to ask, without waiting; an empty batch keeps the count of steps."""
        self._batches.append(self._batch(asks))
        for batch in self._batches:
            self._begin(batch)

    async def due(self, lag: int, episode: str) -> Labels:
        """Returns the labels of all batches but the newest `lag`, once they are there, and has them recorded with
        `episode`. Raises `InfrastructureError` where the annotator failed."""
        labels, unreadable = dict[Question, float](), 0
        while len(self._batches) > lag:
            batch = self._batches[0]
            found = await self._begin(batch)
            missing = sum(label is None for label in found)
            if missing > FEW and 2 * missing > len(found):
                raise InfrastructureError(
                    f"the annotator '{self.annotator.model}' gave no readable answer to {missing} of {len(found)} "
                    f"questions: expected its answers to end with {' or '.join(self.annotator.answers)}; raise the "
                    "stream's max_tokens, ask a stronger model, or one that is here with verdict = 'likelihood'"
                )
            self._batches.popleft()
            self.models.adopt(batch.asked, episode)
            unreadable += missing
            pairs = zip(batch.asks, found, strict=True)
            labels |= {one.about: label for one, label in pairs if label is not None}
        return Labels(labels, unreadable)

    def __len__(self) -> int:
        """Returns how many questions are under way."""
        return sum(len(batch.asks) for batch in self._batches)

    def state(self) -> list[Any]:
        return [[[list(about), episode] for about, episode in batch.asks] for batch in self._batches]

    def restore(self, state: Sequence[Any]) -> None:
        self.close()
        for batch in state:
            self._batches.append(self._batch([Ask(tuple(about), episode) for about, episode in batch]))

    def close(self) -> None:
        """Stops asking, and forgets what was asked."""
        for batch in self._batches:
            if batch.task is not None:
                batch.task.cancel()
        self._batches.clear()

    def _batch(self, asks: Sequence[Ask]) -> _Batch:
        return _Batch(list(asks), AskedModels(self.models.models))

    def _begin(self, batch: _Batch) -> asyncio.Task[list[float | None]]:
        """Begins to ask about a batch, unless that has begun."""
        if batch.task is None:
            batch.task = asyncio.create_task(self._labels(batch))
            batch.task.add_done_callback(lambda done: done.cancelled() or done.exception())  # raised by `due` alone
        return batch.task

    async def _labels(self, batch: _Batch) -> list[float | None]:
        return await together(
            [
                self.annotator.label(batch.asked, *one, f"feedback, question {number}")
                for number, one in enumerate(batch.asks, 1)
            ]
        )
