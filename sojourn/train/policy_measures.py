"""Measures a policy as a whole in the worlds that can (`MeasuresPolicy`): in each evaluation, and in a league."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sojourn.abilities import ActsByProgram, LooksAhead, MeasuredPolicy, MeasuresPolicy
from sojourn.agents.choice_probabilities import choice_probabilities
from sojourn.config.registry import shown
from sojourn.errors import ActionError, BudgetError, WorldError
from sojourn.finite import finite_by_name
from sojourn.protocols import Agent, AgentContext, EnvFamily, Renderer, Sampler
from sojourn.rollout.world import worlds_of
from sojourn.train.assemble import Components
from sojourn.train.recipe import Recipe
from sojourn.types import FloatArray, Observation, Prompt, Sample, SamplingParams, Stop, Versions


class UnmeasurableError(Exception):
    """Nothing tells the probabilities of the listed actions: the agent does not sample among them, in one sample a turn
    that has room for each."""


async def policy_measures(components: Components) -> dict[str, float]:
    """Returns what the worlds measure of the policy that evaluations play; of several worlds, each name is followed by
    that of its world. It is empty where the agent searches, or does not sample among the actions that are listed, and
    where the policy is steered, as tokens that are told in place of sampled ones are not steered."""
    recipe = components.recipe
    if not measurable(recipe, components.runner.agent):
        return {}
    policy = SeatedPolicy(
        agent=components.runner.agent,
        renderer=components.renderer,
        sampler=components.sampler,
        params=recipe.evaluation.params(recipe.sampling),
        max_context=components.runner.max_context,
    )
    return await measures_of(policy, recipe.env, recipe.evaluation.split)


def measurable(recipe: Recipe, agent: Agent) -> bool:
    """Returns whether an agent's own samples are what it does in the evaluations of a recipe."""
    if recipe.evaluation.steering is not None or isinstance(agent, ActsByProgram):
        return False
    return not (isinstance(agent, LooksAhead) and recipe.evaluation.search)


async def measures_of(policy: MeasuredPolicy, family: EnvFamily, split: str) -> dict[str, float]:
    """Returns what the worlds of a family measure of a policy, by name (of several worlds, each name is followed by
    that of its world); nothing where they cannot."""
    measures: dict[str, float] = {}
    for ending, world in _by_ending(family, split).items():
        if isinstance(world, MeasuresPolicy):
            measures |= {f"{name}{ending}": value for name, value in (await _measured(world, policy)).items()}
    return measures


def _by_ending(family: EnvFamily, split: str) -> dict[str, EnvFamily]:
    """Returns the worlds of a family by what is put after the names of their numbers: nothing for a single one, else
    the world's name, or its level where several worlds have the same name."""
    worlds = worlds_of(family)
    if len(worlds) == 1:
        return {"": worlds[0]}
    names = [tasks[0].env if (tasks := world.tasks(split)) else type(world).__name__ for world in worlds]
    if len(set(names)) < len(names):
        names = [f"level-{number}" for number in range(len(names))]
    return {f"_{name}": world for name, world in zip(names, worlds, strict=True)}


async def _measured(world: MeasuresPolicy, policy: MeasuredPolicy) -> dict[str, float]:
    measured: Any = {}
    try:
        measured = await world.measure(policy)
    except* UnmeasurableError:  # a world that asks for many things at once raises a group
        pass
    numbers = finite_by_name(measured)
    if numbers is None:
        kind = type(world).__name__
        raise WorldError(f"measure() of {kind} gives {shown(measured)}: expected finite numbers by name")
    return numbers


@dataclass(frozen=True, kw_only=True)
class SeatedPolicy:
    """Tells how the run's own agent acts (`MeasuredPolicy`): it takes a seat, says the given actions, and its
    probabilities are read where it would sample the next one. So they are those of its prompts, whatever it makes of
    what it has seen."""

    agent: Agent
    renderer: Renderer
    sampler: Sampler
    params: SamplingParams
    max_context: int

    async def __call__(self, seat: str, seen: Sequence[Observation | str]) -> Sequence[float]:
        sampler = ListedSampler(self.sampler, self.renderer.stops)
        context = AgentContext(
            name=seat, renderer=self.renderer, sampler=sampler, params=self.params, max_context=self.max_context
        )
        taken = self.agent.seat(context)
        for number, observation in enumerate(seen):
            if not isinstance(observation, Observation):
                continue
            sampler.said = _place(observation, seen[number + 1]) if number + 1 < len(seen) else None
            sampler.listed, sampler.asked = len(observation.choices), False
            try:
                await taken.act(observation)
            except (ActionError, BudgetError) as error:
                raise UnmeasurableError from error
            if not sampler.asked:
                raise UnmeasurableError
        return sampler.probabilities


def _place(observation: Observation, action: Observation | str) -> int:
    """Returns which of the listed actions was taken."""
    if not isinstance(action, str) or action not in observation.choices:
        raise WorldError(f"measure() asks what follows {action!r:.100}: expected an action that was listed there")
    return observation.choices.index(action)


@dataclass
class ListedSampler:
    """Says the action of the number `said`, of those that are `listed`, in place of the engine. Where that is None, it
    notes how probable each of them is. `asked` says whether the seat has sampled in its present turn."""

    sampler: Sampler
    stops: Sequence[int]
    listed: int = 0
    said: int | None = None
    asked: bool = False
    probabilities: list[float] = field(default_factory=list[float])

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        asked, self.asked = self.asked, True
        among_listed = len(params.choices) == self.listed > 0
        if asked or not among_listed or max(map(len, params.choices)) > params.max_tokens:
            raise UnmeasurableError
        if self.said is None:
            self.probabilities = await choice_probabilities(self.sampler, prompt, params.choices, params, self.stops)
        tokens = np.array(params.choices[self.said or 0], dtype=np.int64)
        return Sample(tokens, np.zeros(len(tokens), dtype=np.float32), Versions(-1, -1), Stop.CHOICE)

    async def score(self, prompt: Prompt) -> FloatArray:
        raise UnmeasurableError

    async def close(self) -> None:
        """Does nothing: the sampler is the run's."""
