"""Asking a model for text: what every model that can be asked offers, and the record of what was asked."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

from sojourn.ability import Ability
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.types import Message


class TooLongError(InfrastructureError):
    """A question leaves a model no room for its answer: whoever asks may shorten it and ask again."""


class Answer(NamedTuple):
    """A model's answer in text, and what it took. `cost` is in the currency of the model's prices. A `cached` answer
    was given earlier to the same question: it costs its first asker what it did, and others nothing."""

    text: str
    prompt_tokens: int
    sampled_tokens: int
    seconds: float = 0.0
    cached: bool = False
    cost: float = 0.0
    unanswered: bool = False  # nobody answered in time, and this is what was agreed on for that


class AskedModel(Protocol):
    """A model that answers in text. The same messages, parameters and weights give the same answer, as far as the
    model's server keeps to that. `asker` is charged for an answer that others may find in a cache later.

    Raises `InfrastructureError` where the model gives no answer, and `TooLongError` where it cannot read the question.
    """

    async def ask(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, asker: str = ""
    ) -> Answer: ...


class Weighed(NamedTuple):
    """The probability of each of some listed answers, which add up to 1, and what they took."""

    probabilities: tuple[float, ...]
    prompt_tokens: int
    seconds: float = 0.0


@runtime_checkable
class WeighsAnswers(Ability, Protocol):
    """A model that also says how probable each of some listed answers is, where it may give no others: the product of
    the probabilities of its tokens at temperature 1, each among those that go on to one of the answers.

    Raises as `AskedModel` does.
    """

    async def weigh(self, messages: Sequence[Message], answers: Sequence[str], *, seed: int) -> Weighed: ...


@dataclass(frozen=True)
class Exchange:
    """Records a question and its answer. It is about the episodes `about`; the record of the first has the `question`,
    those of the others have none. `purpose` says in a few words why it was asked. Of a conversation that goes on,
    `question` holds only the messages that are new since the model's last answer."""

    model: str
    purpose: str
    about: tuple[str, ...]
    question: tuple[Message, ...]
    answer: str
    prompt_tokens: int
    sampled_tokens: int
    cost: float = 0.0
    seconds: float = 0.0
    cached: bool = False
    seed: int = 0
    temperature: float = 0.0
    max_tokens: int = 0
    unanswered: bool = False


@dataclass
class AskedModels:
    """The models of a run that can be asked for text, by name ("policy" among them), and what they were asked about
    episodes that are not recorded yet."""

    models: Mapping[str, AskedModel]
    _pending: dict[str, dict[tuple[object, ...], Exchange]] = field(
        default_factory=dict[str, dict[tuple[object, ...], Exchange]]
    )  # by the episode that it is about, in the order in which it was asked
    _counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    async def ask(
        self,
        model: str,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        about: Sequence[str],
        purpose: str,
        new: int = 0,
    ) -> Answer:
        """Returns a model's answer, which is recorded with the episodes that it is about, once they are: with the last
        `new` messages of the question, or with all (0)."""
        question = tuple(messages)
        answer = await self.models[model].ask(
            question, max_tokens=max_tokens, temperature=temperature, seed=seed, asker=about[0]
        )
        made = Exchange(
            model=model,
            purpose=purpose,
            about=tuple(about),
            question=question[-new:],
            answer=answer.text,
            prompt_tokens=answer.prompt_tokens,
            sampled_tokens=answer.sampled_tokens,
            cost=answer.cost,
            seconds=answer.seconds,
            cached=answer.cached,
            seed=seed,
            temperature=temperature,
            max_tokens=max_tokens,
            unanswered=answer.unanswered,
        )
        self._keep((model, question, max_tokens, temperature, seed, answer.text), made)
        return answer

    async def weigh(
        self,
        model: str,
        messages: Sequence[Message],
        answers: Sequence[str],
        *,
        seed: int,
        about: Sequence[str],
        purpose: str,
    ) -> tuple[float, ...]:
        """Returns the probability that a model gives each of the listed answers, as `WeighsAnswers` does. They are
        recorded with the episodes that the question is about, as its answer."""
        asked, question = self.models[model], tuple(messages)
        if not isinstance(asked, WeighsAnswers):
            raise ConfigError(
                f"the model '{model}' does not say how probable an answer is: name one that is here, with weights"
            )
        weighed = await asked.weigh(question, answers, seed=seed)
        said = zip(answers, weighed.probabilities, strict=True)
        made = Exchange(
            model=model,
            purpose=purpose,
            about=tuple(about),
            question=question,
            answer=", ".join(f"P({text}) = {probability:.4g}" for text, probability in said),
            prompt_tokens=weighed.prompt_tokens,
            sampled_tokens=0,
            seconds=weighed.seconds,
            seed=seed,
            temperature=1.0,
        )
        self._keep((model, question, tuple(answers), seed), made)
        return weighed.probabilities

    def _keep(self, key: tuple[object, ...], made: Exchange) -> None:
        """Keeps what was asked until its episodes are recorded: the question with the first alone."""
        for number, episode in enumerate(made.about):
            own = made if number == 0 else replace(made, question=())
            self._pending.setdefault(episode, {}).setdefault(key, own)

    def adopt(self, others: AskedModels, episode: str) -> None:
        """Takes over what others were asked, to be recorded with an episode, whichever it was about."""
        for of_episode in others._pending.values():
            for key, made in of_episode.items():
                self._pending.setdefault(episode, {}).setdefault(key, replace(made, about=(episode, *made.about)))
        others.forget()

    def of_episode(self, episode: str) -> EpisodeModels:
        """Returns what asks these models about one episode."""
        return EpisodeModels(self, episode)

    def take(self, episodes: Iterable[str]) -> dict[str, tuple[Exchange, ...]]:
        """Returns what was asked about episodes that are being recorded, by their ids, and forgets it."""
        found = {name: tuple(self._pending.pop(name).values()) for name in episodes if name in self._pending}
        for one in (one for of_episode in found.values() for one in of_episode if one.question):
            self._counts["asked"] += 1
            self._counts["asked_tokens"] += one.prompt_tokens + one.sampled_tokens
            self._counts["asked_cost"] += one.cost
            if one.unanswered:
                self._counts["unanswered"] += 1
        return {name: tuple(sorted(asked, key=_place)) for name, asked in found.items()}

    def forget(self) -> None:
        """Forgets what was asked about episodes that no step will record."""
        self._pending.clear()

    def metrics(self) -> Mapping[str, float]:
        """Returns, of what was recorded since the last call, how many answers there were, their tokens and cost,
        and how many were `unanswered`, if any; nothing where there was none."""
        counts, self._counts = self._counts, defaultdict(float)
        return dict(counts)


def _place(one: Exchange) -> tuple[object, ...]:
    """Returns what exchanges are sorted by, as many are made at once: what they are for, "turn 2" before "turn 10"."""
    return *(int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", one.purpose))), one.seed


@dataclass(frozen=True)
class EpisodeModels:
    """The models of a run that can be asked for text, for what takes part in one episode: all that it asks is recorded
    with the episode."""

    models: AskedModels
    episode: str

    async def ask(
        self,
        model: str,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        purpose: str,
        new: int = 0,
    ) -> Answer:
        """Returns a model's answer; `new` is as in `AskedModels.ask`."""
        return await self.models.ask(
            model,
            messages,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            about=(self.episode,),
            purpose=purpose,
            new=new,
        )
