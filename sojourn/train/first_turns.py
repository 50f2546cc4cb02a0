"""Refuses a recipe whose agent cannot take the first turn of a world, which its first episodes would find out late."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from sojourn.abilities import ActsByProgram, HasExpert, with_base_agents
from sojourn.agents.plain import Plain
from sojourn.envs.expert import expert_message
from sojourn.errors import ActionError, BudgetError, ConfigError
from sojourn.protocols import AgentContext, EnvFamily, Renderer
from sojourn.rollout.limits import call_env
from sojourn.sources.play_abilities import FirstPlay, look_at_first_plays, named
from sojourn.timeline import Timeline
from sojourn.train.recipe import Recipe
from sojourn.types import FloatArray, Prompt, Sample, SamplingParams

MAX_KINDS = 4  # kinds of tasks of a world that are begun
MAX_TURNS = 8  # of a play, in which choices are looked for


@dataclass
class Mute:
    """A sampler that says nothing, and keeps the length of the first prompt that it is shown in tokens."""

    shown: int = 0

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        self.shown = self.shown or len(prompt.tokens)
        raise ActionError("nothing is sampled before the run begins")

    async def score(self, prompt: Prompt) -> FloatArray:
        raise NotImplementedError("nothing is scored before the run begins")

    async def close(self) -> None:
        """Does nothing: nothing is open."""


@dataclass
class FirstTurns:
    """Looks at the first turns of a recipe's worlds; `listed` says of each whether it lists choices, or may do so.

    `prompts` has the length of the first prompt in tokens, by world and kind of task.
    """

    recipe: Recipe
    renderer: Renderer | None
    max_context: int
    listed: dict[str, bool] = field(default_factory=dict[str, bool])
    prompts: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def restricted(self) -> bool:
        """Returns whether the agent is to choose among what is listed, or the one that acts for it."""
        return any(isinstance(one, Plain) and one.choices for one in with_base_agents(self.recipe.agent))

    async def __call__(self, play: FirstPlay) -> None:
        if self.renderer is not None and not isinstance(self.recipe.agent, ActsByProgram):
            await self._act(play, self.renderer)
        if self.restricted and not self.listed.get(play.task.env, False):
            self.listed[play.task.env] = await self._may_list(play)

    async def _act(self, play: FirstPlay, renderer: Renderer) -> None:
        """Lets the agent take the turn up to where it would sample."""
        mute = Mute()
        context = AgentContext(
            name=play.shown.agent,
            renderer=renderer,
            sampler=mute,
            params=self.recipe.sampling.params(),
            max_context=self.max_context,
        )
        try:
            with suppress(ActionError):
                async with asyncio.timeout(self.recipe.rollout.limits.stall_s):
                    await self.recipe.agent.seat(context).act(play.shown, None)
        except BudgetError as error:
            raise ConfigError(f"{error}: raise backend.max_context, or shorten what the world shows first") from error
        if mute.shown:
            self.prompts[named(play.task)] = mute.shown

    async def _may_list(self, play: FirstPlay) -> bool:
        """Returns whether a play lists choices in one of its first turns, which its expert takes; without an expert, it
        may list some later."""
        env, shown, limits = play.env, play.shown, self.recipe.rollout.limits
        for _ in range(min(limits.turns, MAX_TURNS)):
            if shown.choices or not isinstance(play.env, HasExpert):
                return True
            action = await expert_message(play.env)
            step = await call_env(env.step, limits, Timeline(), shown.agent, action)
            if step.done or step.observation is None:
                return False
            shown = step.observation
        return bool(shown.choices)


async def check_first_turns(
    recipe: Recipe, renderer: Renderer | None, max_context: int, family: EnvFamily
) -> Mapping[str, int]:
    """Returns the length of the first prompts in tokens, by world and kind of task.

    Refuses a recipe whose worlds, which are open as `family`, begin with what its model cannot be shown: a prompt that
    fills the context, or that the chat format cannot express; and `agent.choices` where no world lists any. Without a
    renderer, only the last of these is known.
    """
    look = FirstTurns(recipe, renderer, max_context)
    if renderer is None and not look.restricted:
        return {}
    await look_at_first_plays(family, recipe.curriculum.split, recipe.rollout.limits, look, MAX_KINDS)
    if look.listed and not any(look.listed.values()):
        raise ConfigError(
            f"agent.choices = true, but the world '{next(iter(look.listed))}' lists no choices in the first turns of "
            "its expert: let it list them, or leave agent.choices out"
        )
    return look.prompts
