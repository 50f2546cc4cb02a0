"""The models that rewards ask for text: checks them, and opens them for a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sojourn.abilities import BindsModels
from sojourn.composite import replaced_bases
from sojourn.errors import ActionError, BudgetError
from sojourn.models.answers import AnswerStore
from sojourn.models.asked_endpoint import EndpointModel
from sojourn.models.asking import Answer, AskedModel, AskedModels, TooLongError
from sojourn.protocols import Renderer, Reward, Sampler
from sojourn.train.recipe import Recipe
from sojourn.train.snapshots import POLICY
from sojourn.types import Message, SamplingParams


@dataclass(frozen=True)
class LocalModel:
    """The model `name` that the run's sampler draws from: the policy by its present weights, or one of `[models]`.

    The answer is the text of what it samples; it is empty where that cannot be read as a message.
    """

    name: str
    renderer: Renderer
    sampler: Sampler

    async def ask(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, asker: str = ""
    ) -> Answer:
        began, prompt = time.monotonic(), self.renderer.open(messages)
        params = SamplingParams(max_tokens, temperature, seed=seed, model=self.name)
        try:
            sample = await self.sampler.sample(prompt, params)
        except BudgetError as error:
            raise TooLongError(f"the model '{self.name}' cannot be asked: {error}") from error
        try:
            text = self.renderer.parse(sample.tokens.tolist()).text
        except ActionError:
            text = ""
        return Answer(text, len(prompt.tokens), len(sample.tokens), time.monotonic() - began)


def open_asked(recipe: Recipe, renderer: Renderer, sampler: Sampler, answers: AnswerStore) -> AskedModels:
    """Returns the models that the rewards of a recipe ask; `sampler` draws from all that are here."""
    models: dict[str, AskedModel] = {}
    for name in recipe.asked_for_text:
        served = recipe.models[name].endpoint if name != POLICY else None
        if served is not None:
            models[name] = EndpointModel(name, served, answers)
        else:
            models[name] = LocalModel(name, renderer, sampler)
    return AskedModels(models)


def bound(reward: Reward, models: AskedModels) -> Reward:
    """Returns a reward that asks these models, with all that it contains."""
    reward = replaced_bases(reward, lambda base: bound(base, models))
    return reward.bind_models(models) if isinstance(reward, BindsModels) else reward
