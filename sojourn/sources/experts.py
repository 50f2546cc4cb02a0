"""Demonstrations by the world's scripted experts, as groups like any other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sojourn.abilities import Demonstrates, HasExpert
from sojourn.call_text import action_text
from sojourn.config.fields import Range
from sojourn.envs.expert import expert_message
from sojourn.errors import BudgetError, ConfigError, failure_and_place
from sojourn.protocols import Agent, Env, Renderer
from sojourn.rollout.runner import SamplerFor
from sojourn.sources.agent_trial import require_demonstrable, require_sayable
from sojourn.sources.context import SourceContext, StageContext, require_imitation
from sojourn.types import Ending, FloatArray, Group, Message, Prompt, Sample, SamplingParams, Stop, Versions


@dataclass(frozen=True, kw_only=True)
class Experts:
    """`width` demonstrations per step by the world's scripted expert, cycling through the curriculum's next
    `distinct_tasks` tasks.

    The expert plays through the same environment, agent and renderer as the model, so a demonstration has exactly the
    tokens that the model would have sampled. With `success_only`, only successful demonstrations are kept.
    """

    width: Annotated[int, Range(1)] = 16
    distinct_tasks: Annotated[int, Range(1)] = 128
    success_only: bool = True

    live = False
    size = 1
    origin = "experts"
    env_needs = frozenset({"expert"})

    def tasks(self, steps: int) -> int:
        return min(self.distinct_tasks, self.width * steps)

    async def check(self, stage: StageContext) -> None:
        await require_expert(stage, "a demonstration", self.origin)

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> LiveExperts:
        return LiveExperts(self, context, stage, first)


async def require_expert(stage: StageContext, samples: str, origin: str) -> None:
    """Raises `ConfigError` unless the stage's world has an expert whose turns its agent can say and its losses can
    learn; `samples` says in words what is made of them."""
    await require_an_expert(stage, "clones demonstrations")
    require_imitation(stage, samples, origin)
    await require_sayable_expert(stage)


async def require_an_expert(stage: StageContext, does: str) -> None:
    """Raises `ConfigError` unless every world of the stage has an expert; `does` says what the stage needs it for."""
    if without := await stage.plays.lacking("expert"):
        raise ConfigError(
            f"stage '{stage.name}' {does}, but {without} has no expert(): define it, choose tasks that have one, or "
            "drop the stage"
        )


async def require_sayable_expert(stage: StageContext) -> None:
    """Raises `ConfigError` unless the stage's agent can say what the world's expert does, in as many tokens as a turn
    may have."""

    def sampler_of(env: Env, renderer: Renderer) -> ExpertSampler:
        return ExpertSampler(env, renderer, stage.agent)

    await require_demonstrable(stage, sampler_of)
    await require_sayable(stage, sampler_of)


@dataclass
class LiveExperts:
    """Plays the demonstrations of one stage, each task once."""

    config: Experts
    context: SourceContext
    stage: str
    first: int = 0
    played: dict[int, Group] = field(default_factory=dict)

    async def take(self, step: int) -> list[Group]:
        width = self.config.width
        numbers = [(step * width + n) % self.config.distinct_tasks for n in range(width)]
        groups = await asyncio.gather(*(self._play(number) for number in dict.fromkeys(numbers)))
        kept = [group for group in groups if self._usable(group)]
        if not kept:
            await self.context.rewards([g for g in groups if g.trajectories])  # what is scored is recorded
            failed = [e for g in groups for e in g.episodes if e.error]
            cause = failure_and_place(failed[0].error, failed[0].traceback) if failed else _without_success(groups)
            raise ConfigError(f"none of {len(groups)} demonstrations can be used: {cause}")
        return kept

    async def close(self) -> None:
        pass

    async def _play(self, number: int) -> Group:
        """Returns a demonstration, which is played once, or again at its next use where the world failed."""
        if number in self.played:
            return self.played[number]
        task = self.context.curriculum.draw(self.first + number)
        label = f"{self.stage}/{number}"
        runner = self.context.runner
        group = await runner.play_group(
            task,
            number,
            1,
            self.context.params,
            label,
            sampler_for=expert_sampler(runner.renderer, runner.agent),
            blame=False,
        )
        group = replace(group, origin=Experts.origin)
        if group.trajectories:
            self.played[number] = group
        return group

    def _usable(self, group: Group) -> bool:
        """Returns whether a demonstration can be imitated; the group of one that the world failed is empty."""
        seats = group.trajectories
        return bool(seats) and (not self.config.success_only or all(seat.success for seat in seats))


def _without_success(groups: Sequence[Group]) -> str:
    """Says why demonstrations of experts that did not fail cannot be used: a full context is no fault of the expert."""
    full = sum(any(t.ending is Ending.TOKENS for t in group.trajectories) for group in groups)
    if full:
        return f"{full} of them filled the context: raise backend.max_context, or shorten what the world shows"
    return "the experts did not succeed"


def expert_sampler(renderer: Renderer, agent: Agent) -> SamplerFor:
    """Returns, for each episode, a sampler that gives the actions of its environment's expert, as the agent is to say
    them."""
    return lambda env, label: ExpertSampler(env, renderer, agent)


@dataclass
class ExpertSampler:
    """Returns the expert's next action as tokens, in place of the engine, or the replies that it makes of the agent's
    turn, one by one; `turns` counts the actions, and `most` is the most tokens that one was allowed to have.

    Raises `BudgetError` for an action that has no room in the context any more, as the agent does for a prompt.
    """

    env: Env
    renderer: Renderer
    agent: Agent
    turns: int = 0
    most: int = 0
    replies: deque[Message] = field(default_factory=deque[Message])

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        if not isinstance(self.env, HasExpert):
            raise ConfigError("the world has no expert(): demonstrations need one")
        if not self.replies:
            action, self.turns = await expert_message(self.env), self.turns + 1
            self.replies += self.agent.demonstrated(action) if isinstance(self.agent, Demonstrates) else [action]
        message = self.replies.popleft()
        tokens = np.asarray(self.renderer.encode_reply(message), dtype=np.int64)
        self.most = max(self.most, params.max_tokens)
        if params.max_tokens < len(tokens) <= self.most:
            raise BudgetError(f"the expert's action has {len(tokens)} tokens, the context room for {params.max_tokens}")
        if len(tokens) > params.max_tokens:
            text = action_text(message)
            raise ConfigError(
                f"the expert's action has {len(tokens)} tokens, {text!r}, where sampling.max_tokens and the context "
                f"allow {params.max_tokens}: a model that learnt it would be cut off: raise sampling.max_tokens"
            )
        return Sample(tokens, np.zeros(len(tokens), dtype=np.float32), Versions(-1, -1), Stop.END)

    async def score(self, prompt: Prompt) -> FloatArray:
        raise NotImplementedError("an expert has no probabilities")

    async def close(self) -> None:
        """Does nothing: nothing is open."""
