"""What components offer that ask models, or people, for text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sojourn.ability import Ability
from sojourn.protocols import Reward, Stream
from sojourn.types import Message

if TYPE_CHECKING:
    from sojourn.models.asked_person import Patience
    from sojourn.models.asking import AskedModels


@runtime_checkable
class AsksForText(Ability, Protocol):
    """A component that asks models for text: `asks` names them, of `[models]`, or "policy"."""

    @property
    def asks(self) -> frozenset[str]: ...


@runtime_checkable
class AsksPeople(AsksForText, Protocol):
    """An agent that may ask a person: `patience` says how long it waits for an answer; None where one of the models
    that it `asks` answers in the person's place."""

    @property
    def patience(self) -> Patience | None: ...


@runtime_checkable
class BindsModels(AsksForText, Protocol):
    """A reward that asks models for text.

    `bind_models` returns the reward that asks them. `example_answer` returns what a model might answer to one of its
    questions, which follows from the question alone: for checks, where there is no model.
    """

    def bind_models(self, models: AskedModels) -> Reward: ...
    def example_answer(self, question: Sequence[Message]) -> str: ...


@runtime_checkable
class BindsStreamModels(AsksForText, Protocol):
    """A stream that asks models for text, as rewards do that are `BindsModels`. Its models learn nothing in the run, as
    it may ask them at any time."""

    def bind_models(self, models: AskedModels) -> Stream: ...
    def example_answer(self, question: Sequence[Message]) -> str: ...


@runtime_checkable
class ReadsLikelihoods(Ability, Protocol):
    """A component that asks models how probable listed answers are: `likelihoods` names those of the models that it
    `asks`, which are then not behind endpoints."""

    @property
    def likelihoods(self) -> frozenset[str]: ...
