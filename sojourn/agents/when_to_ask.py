"""An agent that may ask a stronger model for its next action, and pays for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from sojourn.agents.conversation import Conversation
from sojourn.agents.plain import Plain
from sojourn.agents.told import ToldSeat, require_base
from sojourn.call_text import action_text
from sojourn.config.fields import NONBLANK, TEMPERATURE, Kind, Range
from sojourn.errors import ActionError, ConfigError
from sojourn.models.asking import TooLongError
from sojourn.protocols import Agent, AgentContext
from sojourn.types import Message, Observation, Role


@dataclass(frozen=True, kw_only=True)
class WhenToAsk:
    """Has the agent `base` act, which may say `word` instead of an action: then `model`, one of `[models]` that does
    not learn, is asked for the action, which is performed, and `cost` is taken from the reward of the turn.

    So the policy learns when a dearer model is worth its price, and does the rest itself. This is the mediator of
    When2Ask (Hu et al. 2023, arXiv:2306.03604) for a policy that is itself a language model. The model sees the whole
    conversation in text, answers with at most `max_tokens` tokens at `temperature`, and what it was asked is recorded
    with the episode. The policy is told at the end of its system message that it may ask, and with its next observation
    what was done. Where the world lists choices, `word` is one more of them. What is trained is what the policy
    sampled: `word`. In the info of such a turn `asked` is 1. Where the conversation is too long for the model, asking
    is refused as an impossible action is, and costs nothing.

    Of the paper the abstract and accounts were read. There the mediator is a policy of its own, the model gives a plan
    of several steps, which another policy carries out, and asking in vain is what costs most; here the model gives one
    action, and every question costs the same.
    """

    model: Annotated[str, NONBLANK]
    cost: Annotated[float, Range(0)] = 0.05
    word: Annotated[str, NONBLANK] = "ask"
    max_tokens: Annotated[int, Range(1)] = 512
    temperature: Annotated[float, TEMPERATURE] = 0.0
    base: Annotated[Agent, Kind("agent")] = field(default_factory=Plain)

    unverified = "of the paper the abstract and accounts were read, not its text"

    def __post_init__(self) -> None:
        require_base(self.base)
        if isinstance(self.base, WhenToAsk):
            raise ValueError("base is when_to_ask, too: name the agent that is to act, such as plain")

    @property
    def asks(self) -> frozenset[str]:
        return frozenset({self.model})

    def seat(self, context: AgentContext) -> WhenToAskSeat:
        text = f'Say "{self.word}" to have a stronger model choose your next action. Each time costs {self.cost:g}.'
        return WhenToAskSeat(
            agent="when_to_ask",
            acting=self.base,
            base=self.base.seat(context),
            text=text,
            config=self,
            name=context.name,
            conversation=Conversation(
                self.model, context.models, self.max_tokens, self.temperature, context.params.seed
            ),
        )  # fmt: skip


@dataclass(kw_only=True)
class WhenToAskSeat(ToldSeat):
    """A participant of one episode, which acts itself or has another model act."""

    config: WhenToAsk
    name: str
    conversation: Conversation
    report: str = ""  # what the model did, until the policy is told

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        self.conversation.observe(observation)
        action = await super().act(observation, state)
        if not action.calls and action.text.strip() == self.config.word:
            try:
                advised = await self.conversation.ask(f"{self.name}, question {self.conversation.asked + 1}")
            except TooLongError as error:
                raise ActionError("The conversation is too long for the stronger model: act yourself.") from error
            self.add_reward(-self.config.cost, {"asked": 1.0})
            action = advised.message
            self.report = f"The stronger model did: {action.text}"
        self.conversation.act(action_text(action))
        return action

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        self.refusal = self._reported(super().refuse(error, observation))
        return self.refusal

    def fork(self, context: AgentContext | None = None) -> WhenToAskSeat:
        fork = super().fork(context)
        assert isinstance(fork, WhenToAskSeat)
        return replace(fork, conversation=self.conversation.fork(context))

    def told(self, observation: Observation) -> Observation:
        told, word = self._reported(super().told(observation)), self.config.word
        if word in told.choices:
            raise ConfigError(f"agent.word = '{word}' is an action of the world: choose another word")
        return replace(told, choices=(*told.choices, word)) if told.choices else told

    def _reported(self, observation: Observation) -> Observation:
        """Returns what the policy is shown, with what was done for it, once."""
        if not self.report:
            return observation
        report, self.report = Message(Role.USER, self.report), ""
        return replace(observation, messages=(report, *observation.messages))
