"""The models that are asked for text, by rewards, agents and in seats: checks them, and opens them for a run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sojourn.abilities import (
    AsksPeople,
    BindsModels,
    GivesSamples,
    LooksAhead,
    asked_for_text,
    likelihoods,
    parts_of,
    with_base_agents,
)
from sojourn.agents.choice_probabilities import choice_probabilities
from sojourn.composite import replaced_bases, with_bases
from sojourn.errors import ActionError, BudgetError, ConfigError
from sojourn.models.answers import AnswerStore
from sojourn.models.asked_endpoint import EndpointModel
from sojourn.models.asked_person import PERSON, AskedPerson
from sojourn.models.asking import Answer, AskedModel, AskedModels, TooLongError, Weighed
from sojourn.protocols import Renderer, Reward, Sampler
from sojourn.searchers.search import JudgedSearch
from sojourn.sources.searched import Searched
from sojourn.train.people import check_people, patience_of
from sojourn.train.recipe import Recipe
from sojourn.train.snapshots import POLICY
from sojourn.types import Message, Role, SamplingParams


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
        with self._within_context():
            sample = await self.sampler.sample(prompt, params)
        try:
            text = self.renderer.parse(sample.tokens.tolist()).text
        except ActionError:
            text = ""
        return Answer(text, len(prompt.tokens), len(sample.tokens), time.monotonic() - began)

    async def weigh(self, messages: Sequence[Message], answers: Sequence[str], *, seed: int) -> Weighed:
        began, prompt = time.monotonic(), self.renderer.open(messages)
        choices = [tuple(self.renderer.encode_reply(Message(Role.ASSISTANT, text))) for text in answers]
        params = SamplingParams(1, seed=seed, model=self.name)
        with self._within_context():
            found = await choice_probabilities(self.sampler, prompt, choices, params, self.renderer.stops)
        return Weighed(tuple(found), len(prompt.tokens), time.monotonic() - began)

    @contextmanager
    def _within_context(self) -> Iterator[None]:
        try:
            yield
        except BudgetError as error:
            raise TooLongError(f"the model '{self.name}' cannot be asked: {error}") from error


def open_asked(recipe: Recipe, renderer: Renderer, sampler: Sampler, answers: AnswerStore) -> AskedModels:
    """Returns the models of a recipe that are asked for text; `sampler` draws from all that are here."""
    models: dict[str, AskedModel] = {}
    if (patience := patience_of(recipe)) is not None:
        models[PERSON] = AskedPerson(patience, answers)
    for name in sorted((recipe.asked_for_text | recipe.served_seats.keys()) - models.keys()):
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


def check_asked(recipe: Recipe) -> None:
    """Refuses models that a reward, an agent or a stream cannot ask for text, and a search whose reward or agent asks
    any."""
    check_people(recipe)
    asking = [("reward", one) for one in with_bases([recipe.reward])]
    asking += [("streams", one) for one in recipe.trained_streams]
    asking += [("agent", one) for one in with_base_agents(recipe.agent)]
    for where, one in asking:
        people = {PERSON} if isinstance(one, AsksPeople) and one.patience is not None else set[str]()
        for name in sorted(asked_for_text(one) - people):
            _check_asked_model(recipe, where, name)
        for name in sorted(likelihoods(one) & recipe.models.keys()):
            if recipe.models[name].endpoint is not None:
                raise ConfigError(
                    f"{where}: {type(one).__name__} reads how probable the model '{name}' finds each verdict, which a "
                    "server of chat completions says of its likeliest tokens alone: name a model that is here"
                )
    parts = [part for stage in recipe.stages for part in parts_of(stage.groups)]
    searches = [recipe.agent, *(part.agent for part in parts if isinstance(part, Searched))]
    rewards = with_bases([agent.reward for agent in searches if isinstance(agent, JudgedSearch)])
    if names := [type(one).__name__ for one in rewards if asked_for_text(one)]:
        raise ConfigError(
            f"agent.reward: {names[0]} asks a model, but a search judges plays that are not recorded: give it another "
            "reward"
        )
    asking_agents = [one for one in with_base_agents(recipe.agent) if asked_for_text(one)]
    if asking_agents and (why := _takes_over(recipe)):
        raise ConfigError(
            f"agent: {type(asking_agents[0]).__name__} asks a model in the course of a play, but {why}: leave one of "
            "the two out"
        )


def _check_asked_model(recipe: Recipe, where: str, name: str) -> None:
    changing = name == POLICY or name in recipe.learning
    if where != "reward" and changing:
        raise ConfigError(
            f"{where}: it asks the model '{name}', which learns in the run, so that a run which is resumed would be "
            "answered otherwise: name one that does not"
        )
    if name == POLICY:
        return
    if name not in recipe.models:
        known = ", ".join(sorted({POLICY, *recipe.models}))
        raise ConfigError(f"{where}: it asks the model '{name}', but there are {known}: add a table [models.{name}]")
    if recipe.models[name].snapshots is not None:
        raise ConfigError(
            f"{where}: it asks the model '{name}', which is a pool of snapshots: these take seats alone: name another "
            "model" + (", or 'policy'" if where == "reward" else "")
        )


def check_served_seats(recipe: Recipe) -> None:
    """Refuses models behind endpoints in the seats of plays that a server cannot be asked for turn by turn."""
    if recipe.served_seats and (why := _takes_over(recipe)):
        raise ConfigError(
            f"seats: models.{min(recipe.served_seats)} is behind an endpoint, but {why}: give the seat to a model that "
            "is here, by a name or weights"
        )


def _takes_over(recipe: Recipe) -> str:
    """Returns what makes plays of a recipe that go on otherwise than as models are asked in their course; empty where
    nothing does."""
    parts = [part for stage in recipe.stages for part in parts_of(stage.groups)]
    for part in (recipe.agent, *parts):
        if isinstance(part, LooksAhead | Searched):
            return f"{type(part).__name__} tries actions in copies of plays, which are not recorded"
        if isinstance(part, GivesSamples) and part.gives_samples:
            return f"{type(part).__name__} plays with samples of its own, where there is nothing to ask"
    return ""
