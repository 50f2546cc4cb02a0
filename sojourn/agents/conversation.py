"""What a seat has observed and done, as a conversation in text, and a model that is asked what to do next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sojourn.agents.plain import SEED_STRIDE
from sojourn.agents.text_seat import TextReply, TextSeat
from sojourn.errors import ConfigError
from sojourn.models.asking import EpisodeModels
from sojourn.protocols import AgentContext
from sojourn.types import Message, Observation, Role


class Advised(NamedTuple):
    """An action that a model was asked for, and how many tokens it sampled."""

    message: Message
    tokens: int


@dataclass
class Conversation:
    """The conversation of one seat with the model `model` of the run, whose answers are the seat's actions.

    What is observed is said by the user, answers to tool calls included, as servers take those only for calls in their
    own format. Messages of one role that follow each other become one, since many chat formats want roles in turn.
    """

    model: str
    models: EpisodeModels | None  # None outside of a run, where nothing can be asked
    max_tokens: int
    temperature: float
    seed: int
    system: tuple[Message, ...] = ()
    messages: list[Message] = field(default_factory=list[Message])
    asked: int = 0

    def observe(self, observation: Observation) -> None:
        """Adds what the seat observes; raises `ConfigError` where that is not all in text."""
        self.system = observation.system or self.system
        _require_text(observation, self.system, self.model)
        for message in observation.messages:
            self._add(Role.USER, message.text)

    def act(self, text: str) -> None:
        """Adds what the seat did."""
        self._add(Role.ASSISTANT, text)

    async def ask(self, purpose: str) -> Advised:
        """Returns the model's next action. Each question of an episode has a seed of its own."""
        if self.models is None:
            raise ConfigError(f"the model '{self.model}' is to be asked for an action, which a run alone has open")
        self.asked += 1
        acted = [number for number, message in enumerate(self.messages) if message.role is Role.ASSISTANT]
        answer = await self.models.ask(
            self.model,
            [*self.system, *self.messages],
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=(self.seed + SEED_STRIDE * self.asked) % 2**63,
            purpose=purpose,
            new=len(self.messages) - 1 - acted[-1] if acted else 0,
        )
        thought, text = split_thought(answer.text)
        return Advised(Message(Role.ASSISTANT, text, thought), answer.sampled_tokens)

    def fork(self, context: AgentContext | None = None) -> Conversation:
        """Returns a copy, which goes on in another episode where the `context` of that is given."""
        copy = replace(self, messages=list(self.messages))
        return copy if context is None else replace(copy, models=context.models, seed=context.params.seed)

    def _add(self, role: Role, text: str) -> None:
        if self.messages and self.messages[-1].role is role:
            self.messages[-1] = Message(role, f"{self.messages[-1].text}\n{text}")
        else:
            self.messages.append(Message(role, text))


@dataclass
class AskedSpeaker:
    """Speaks for a seat that a model takes which is asked for text; the model's turns hold no tokens of ours."""

    seat: str
    conversation: Conversation

    async def reply(self, observation: Observation) -> TextReply:
        self.conversation.observe(observation)
        advised = await self.conversation.ask(f"the seat {self.seat}, turn {self.conversation.asked + 1}")
        self.conversation.act(advised.message.text)
        return TextReply(advised.message, advised.tokens)


@dataclass
class AskedSeat(TextSeat):
    """The seat of a model that is asked in text, and not trained."""

    def fork(self, context: AgentContext | None = None) -> AskedSeat:
        assert isinstance(self.speaker, AskedSpeaker)
        speaker = replace(self.speaker, conversation=self.speaker.conversation.fork(context))
        return replace(self, speaker=speaker, turns=list(self.turns))

    @classmethod
    def of(cls, context: AgentContext, max_tokens: int = 0) -> AskedSeat:
        """Returns the seat of the model `context.params.model`, which is asked for each turn for at most `max_tokens`
        (0: as many as the policy may sample)."""
        params = context.params
        most = max_tokens or params.max_tokens
        conversation = Conversation(params.model, context.models, most, params.temperature, params.seed)
        return cls(context.name, AskedSpeaker(context.name, conversation), trainable=False, model=params.model)


def split_thought(text: str) -> tuple[str, str]:
    """Returns the thought that a reply begins with, if any, and the rest."""
    thought, mark, rest = text.partition("</think>")
    return (thought.replace("<think>", "").strip(), rest.strip()) if mark else ("", text.strip())


def _require_text(observation: Observation, system: tuple[Message, ...], model: str) -> None:
    """Refuses images, and tools that no text describes."""
    if any(message.images for message in observation.messages):
        raise ConfigError(
            f"the world shows images, but the model '{model}' is asked in text: give the seat to a model that is here, "
            "or have the world show text alone"
        )
    described = "\n".join(message.text for message in (*system, *observation.messages))
    if hidden := [tool.name for tool in observation.tools if tool.name not in described]:
        raise ConfigError(
            f"the world declares its tool '{hidden[0]}' as a schema alone, but the model '{model}' is asked in text: "
            'let the world describe its tools in its system message too, such as by env.form = "both"'
        )
