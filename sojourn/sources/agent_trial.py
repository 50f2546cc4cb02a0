"""Tries an agent and experts for one turn without a model, to find out whether demonstrations can be made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sojourn.agents.plain import Plain
from sojourn.errors import ActionError, ConfigError, NoActionError
from sojourn.event_loop import contained
from sojourn.protocols import AgentContext, Env, Renderer, Sampler
from sojourn.rollout.limits import call_env
from sojourn.rollout.world import worlds_of
from sojourn.sources.context import StageContext
from sojourn.sources.play_abilities import FirstPlay, look_at_first_plays
from sojourn.timeline import Timeline
from sojourn.types import Message, Prompt, Sample, Tool

ROOM = 1 << 30  # tokens of a context that is never full
MAX_KINDS = 16  # kinds of tasks of a world whose experts are asked


@dataclass
class NumberedReplies:
    """A renderer without a tokenizer: the token of a reply is its number, and prompts have one token."""

    replies: list[Message] = field(default_factory=list[Message])
    stops: tuple[int, ...] = ()

    def open(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        return Prompt(np.zeros(1, dtype=np.int64))

    def extend(self, last: Sample, messages: Sequence[Message]) -> Prompt | None:
        return self.open(messages)

    def parse(self, tokens: Sequence[int]) -> Message:
        if len(tokens) != 1:
            raise ActionError("a reply is one token here")
        return self.replies[tokens[0]]

    def encode_reply(self, message: Message) -> Sequence[int]:
        self.replies.append(message)
        return [len(self.replies) - 1]


class CountingSampler(Sampler, Protocol):
    """A sampler of an expert's actions, which counts in `turns` for how many it was asked."""

    turns: int


SamplerOf = Callable[[Env, Renderer], CountingSampler]


async def require_demonstrable(stage: StageContext, sampler_of: SamplerOf) -> None:
    """Raises `ConfigError` if the stage's agent samples more than once in a turn, and does not say what an expert's
    turn is made of (`Demonstrates`), or begins with a turn that is no action.

    It takes one turn of the first task. An agent that cannot take it with this renderer is tried when it first plays.
    """
    if type(stage.agent) is Plain:
        return  # it samples once, and the world need not be started for it
    try:
        taken = await contained(_expert_turns(stage, sampler_of))
    except ConfigError:
        raise
    except NoActionError:
        raise ConfigError(
            f"stage '{stage.name}' clones demonstrations, but the first turn of {type(stage.agent).__name__} is no "
            "action of the world, and an expert says only its actions: choose an agent that acts at once, or drop "
            "the stage"
        ) from None
    except Exception:  # of the world, or of an agent that needs a tokenizer: the first episode tells of it
        return
    if taken > 1:
        raise ConfigError(
            f"stage '{stage.name}' clones demonstrations, but {type(stage.agent).__name__} samples {taken} times in a "
            "turn, and an expert says only its action: define demonstrated(action), which returns the replies of a "
            "turn in order, or drop the stage"
        )


async def _expert_turns(stage: StageContext, sampler_of: SamplerOf) -> int:
    """Returns for how many turns the expert is asked while the agent takes its first."""
    world = worlds_of(stage.plays.family)[0]
    env, timeline = world.make(world.tasks(stage.split)[0]), Timeline()
    renderer = NumberedReplies()
    sampler = sampler_of(env, renderer)
    try:
        shown = await call_env(env.start, stage.limits, timeline)
        context = AgentContext(
            name=shown.agent, renderer=renderer, sampler=sampler, params=stage.params, max_context=ROOM
        )
        with suppress(ActionError):  # an expert's action may be no plan
            await stage.agent.seat(context).act(shown, None)
        return sampler.turns
    finally:
        await call_env(env.close, stage.limits, timeline)


async def require_sayable(stage: StageContext, sampler_of: SamplerOf) -> None:
    """Raises `ConfigError` if the first action of an expert, in the first task of a kind, has more tokens than a model
    may sample in a turn. Where the model's format is not known yet, the first demonstration tells."""
    renderer = stage.renderer
    if renderer is None:
        return

    async def look(play: FirstPlay) -> None:
        await sampler_of(play.env, renderer).sample(Prompt(np.zeros(0, dtype=np.int64)), stage.params)

    await look_at_first_plays(stage.plays.family, stage.split, stage.limits, look, MAX_KINDS)
