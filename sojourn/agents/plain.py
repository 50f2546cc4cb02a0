"""An agent of one model, whose context is the whole history, a window of it, or the last observation only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np

from sojourn.agents.refusal import reasons
from sojourn.config.fields import Range
from sojourn.errors import ActionError, BudgetError
from sojourn.protocols import AgentContext
from sojourn.render.choices import tokens_of
from sojourn.types import (
    Ending,
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Tool,
    Trajectory,
    Turn,
)

SEED_STRIDE = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, so that the seeds of turns differ in many bits


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Gives the model its history as the context and takes its reply as the action.

    `history`: "full" extends one context, and begins a new one with all of it where the system messages or the tools
    change; "window" begins a new one each turn, of the system messages and the last `turns` exchanges; "page" shows the
    system messages and the present observation only. `malformed`: "tell" sends the error to the model as its next
    observation (which counts as a turn), followed by the present observation where that has left the context; "end"
    ends the episode. `choices` restricts what is sampled to the observation's choices, where it has any.
    """

    history: Literal["full", "window", "page"] = "full"
    turns: Annotated[int, Range(1)] = 3
    malformed: Literal["tell", "end"] = "tell"
    choices: bool = False

    def seat(self, context: AgentContext) -> PlainSeat:
        return PlainSeat(self, context)


@dataclass(frozen=True)
class Exchange:
    """Holds what one turn added to the conversation: messages and the reply."""

    messages: tuple[Message, ...]
    sample: Sample
    message: Message | None


@dataclass
class PlainSeat:
    """A participant of one episode, which asks the model for each action."""

    config: Plain
    context: AgentContext
    system: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    past: list[Exchange] = field(default_factory=list[Exchange])
    turns: list[Turn] = field(default_factory=list[Turn])
    last_context: Prompt = field(default_factory=lambda: Prompt(np.zeros(0, dtype=np.int64)))  # with its sample
    pending_reward: float = 0.0
    pending_info: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def ends_when_malformed(self) -> bool:
        return self.config.malformed == "end"

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        """Samples an action. Raises `BudgetError` when the context is full, `ActionError` when it cannot be read."""
        opening, self.system = self.system, observation.system or self.system
        declared, self.tools = self.tools, observation.tools or self.tools
        changed = (opening, declared) != (self.system, self.tools)
        parent, new, prompt = self._prompt(observation, changed)
        known = () if observation.system else self.system
        context_messages = (*known, *self._past_messages()) if parent < 0 and self.turns else ()
        room = self.context.max_context - (length := len(prompt.tokens))
        if room < 1:
            raise BudgetError(
                f"the prompt has {length} tokens, a context at most {self.context.max_context}: no room to act"
            )
        params = self._params(observation, room)
        sample = await self.context.sampler.sample(prompt, params)
        self.last_context = _joined(prompt, Prompt(sample.tokens))
        message, failure = self._read(sample)
        observed = (observation.system if parent < 0 else ()) + observation.messages
        tools = self.tools if parent < 0 else ()
        given = self.pending_reward, self.pending_info
        self.turns.append(
            Turn(
                parent, new.tokens, sample, message, *given, new.images, state, tools=tools, observed=observed,
                context_messages=context_messages,
            )
        )  # fmt: skip
        self.pending_reward, self.pending_info = 0.0, {}
        self.past.append(Exchange(observation.messages, sample, message))
        if failure is not None:
            raise failure
        assert message is not None
        return message

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        """Adds to the reward and info of the last turn; what comes before the first turn is kept for it."""
        if not self.turns:
            self.pending_reward, self.pending_info = self.pending_reward + reward, {**self.pending_info, **info}
            return
        if not (reward or info):
            return
        last = self.turns[-1]
        self.turns[-1] = replace(last, reward=last.reward + reward, info={**last.info, **info})

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        """Returns the observation after a refused action: the reason, and again what has left the context."""
        kept = [message for exchange in self._past_in_context() for message in exchange.messages]
        again = [message for message in observation.messages if message not in kept]
        return replace(observation, system=(), messages=(*reasons(error, self.turns[-1]), *again))

    def fork(self, context: AgentContext | None = None) -> PlainSeat:
        return replace(self, context=context or self.context, past=list(self.past), turns=list(self.turns))

    def finish(self, ending: Ending) -> Trajectory:
        pending = self.pending_reward, self.pending_info, self.context.params.model  # rewards: if it never acted
        return Trajectory(self.context.name, tuple(self.turns), ending, self.context.trainable, *pending)

    def _params(self, observation: Observation, room: int) -> SamplingParams:
        params = self.context.params
        chosen = self.config.choices and observation.choices
        return replace(
            params,
            max_tokens=min(params.max_tokens, room),
            seed=(params.seed + SEED_STRIDE * (len(self.turns) + 1)) % 2**63,
            choices=tokens_of(self.context.renderer, observation.choices) if chosen else params.choices,
        )

    def _read(self, sample: Sample) -> tuple[Message | None, ActionError | None]:
        try:
            return self.context.renderer.parse(sample.tokens.tolist()), None
        except ActionError as error:
            return None, error

    def _prompt(self, observation: Observation, changed: bool) -> tuple[int, Prompt, Prompt]:
        """Returns the parent turn, what is new since its sample, and the whole prompt.

        A context begins with the system messages and the tools, so that others (`changed`) begin a new one.
        """
        if self.config.history == "full" and self.past and not changed:
            more = self.context.renderer.extend(self.past[-1].sample, observation.messages)
            if more is not None:
                return len(self.turns) - 1, more, _joined(self.last_context, more)
        whole = self._render(self._past_in_context(), observation.messages)
        return -1, whole, whole

    def _past_in_context(self) -> Sequence[Exchange]:
        """Returns the past exchanges that a new context holds."""
        keep = {"full": len(self.past), "window": self.config.turns, "page": 0}[self.config.history]
        return self.past[len(self.past) - min(keep, len(self.past)) :]

    def _past_messages(self) -> list[Message]:
        """Returns the messages of the past exchanges that a new context holds."""
        past = [(*e.messages, e.message or Message(Role.ASSISTANT)) for e in self._past_in_context()]
        return [message for exchange in past for message in exchange]

    def _render(self, past: Sequence[Exchange], messages: tuple[Message, ...]) -> Prompt:
        """Renders the system messages, past exchanges and the new messages. Past samples keep their tokens; only where
        the format rewrites history, they are rendered again from their messages, as context."""
        renderer = self.context.renderer
        steps = [exchange.messages for exchange in past] + [messages]
        parts = [renderer.open((*self.system, *steps[0]), self.tools)]
        for exchange, following in zip(past, steps[1:], strict=True):
            more = renderer.extend(exchange.sample, following)
            if more is None:
                return renderer.open((*self.system, *self._past_messages(), *messages), self.tools)
            parts += [Prompt(exchange.sample.tokens), more]
        return _joined(*parts)


def _joined(*parts: Prompt) -> Prompt:
    """Returns the tokens and images of all parts, in order."""
    images = tuple(image for part in parts for image in part.images)
    return Prompt(np.concatenate([part.tokens for part in parts]), images)
