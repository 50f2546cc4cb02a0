"""An agent that may ask a person a question, and waits for the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from sojourn.abilities import with_base_agents
from sojourn.agents.plain import SEED_STRIDE, Plain
from sojourn.agents.refusal import ReplyError
from sojourn.agents.told import ToldSeat, require_base
from sojourn.call_text import action_text
from sojourn.config.fields import TEMPERATURE, TEXT, Kind, Range, Text
from sojourn.errors import ActionError, ConfigError, NoActionError
from sojourn.models.asked_person import PERSON, Patience
from sojourn.models.asking import EpisodeModels, TooLongError
from sojourn.protocols import Agent, AgentContext
from sojourn.types import Message, Observation, Role

WORD = Text(r"[^\0\s:][^\0:\n]{0,39}", "a word, or a few, without a colon")
TOLD = 'To ask a person, reply with "{word}: " and your question, and nothing else. You may ask {most}.'
IN_PERSON = (
    "An agent is at work for you, and may ask you questions. You are shown all that it was shown and did so far. "
    "Answer its last question in a few words."
)
QUESTIONS = "questions"  # in the info of a turn: 1 where it was a question, and so no action of the world
WAIT_S, MAX_TOKENS = 300.0, 256  # where the recipe says nothing
WEEK_S = 604_800.0
SPEAKERS = {Role.SYSTEM: "Its task", Role.USER: "It was shown", Role.TOOL: "It was shown", Role.ASSISTANT: "It said"}


@dataclass(frozen=True, kw_only=True)
class AskPerson:
    """Has the agent `base` act, which may also ask a person: a reply such as "ask: Which of the two?" is no action of
    the world, but a question, and the answer is what the agent is shown next. The word before the colon is `word`. An
    episode has at most `questions` of them, one more is refused, and each takes `cost` from the reward of its turn.

    The person finds the question, with the episode so far, in the viewer or by `sojourn answer RUN`, and has `wait_s`
    seconds. After that the agent is told `unanswered`, a text that the recipe has to state, and the play goes on; with
    `wait_s = 0` it is told so at once. Whatever was replied is kept in the run folder, and told again where a run is
    resumed and plays the episode again. With `person`, one of `[models]` that does not learn answers in the person's
    place, in at most `max_tokens` tokens at `temperature`: to simulate people, or to test.

    The policy is told at the end of its system message how it may ask. What is trained is what it sampled, the question
    itself. `limits.turns` counts questions. In the info of such a turn `questions` is 1, and `unanswered` is 1 where
    nobody answered.
    """

    base: Annotated[Agent, Kind("agent")] = field(default_factory=Plain)
    word: Annotated[str, WORD] = "ask"
    questions: Annotated[int, Range(1)] = 3
    cost: Annotated[float, Range(0)] = 0.05
    wait_s: Annotated[float, Range(0, WEEK_S)] = WAIT_S
    unanswered: Annotated[str, TEXT] = ""
    person: Annotated[str, TEXT] = ""
    max_tokens: Annotated[int, Range(1)] = MAX_TOKENS
    temperature: Annotated[float, TEMPERATURE] = 0.0

    def __post_init__(self) -> None:
        require_base(self.base)
        for one in with_base_agents(self.base):
            if isinstance(one, AskPerson):
                raise ValueError("base is ask_person, too: name the agent that is to act, such as plain")
            if isinstance(one, Plain) and one.choices:
                raise ValueError("base with choices, of which none is a question: set base.choices to false")
        if self.person == PERSON:
            raise ValueError(f"person = '{PERSON}': expected another name of a model, as this one stands for people")
        if not self.person and not self.unanswered.strip():
            raise ValueError(
                "unanswered is missing: state what the agent is told when nobody answers in time, such as "
                "unanswered = 'Nobody is there.'"
            )
        if self.person and (self.unanswered or self.wait_s != WAIT_S):
            raise ValueError(
                f"person = '{self.person}' with wait_s or unanswered: a model always answers, so expected neither: "
                "leave them out"
            )
        if not self.person and (self.max_tokens != MAX_TOKENS or self.temperature):
            raise ValueError(
                "max_tokens or temperature without a model that answers: leave them out, or name one as `person`"
            )

    @property
    def asks(self) -> frozenset[str]:
        return frozenset({self.person or PERSON})

    @property
    def patience(self) -> Patience | None:
        return None if self.person else Patience(self.wait_s, self.unanswered)

    def seat(self, context: AgentContext) -> AskPersonSeat:
        most = "one question" if self.questions == 1 else f"up to {self.questions} questions"
        text = TOLD.format(word=self.word, most=most) + (f" Each costs {self.cost:g}." if self.cost else "")
        return AskPersonSeat(
            agent="ask_person",
            acting=self.base,
            base=self.base.seat(context),
            text=text,
            config=self,
            name=context.name,
            models=context.models,
            seed=context.params.seed,
        )


@dataclass(kw_only=True)
class AskPersonSeat(ToldSeat):
    """A participant of one episode, which acts or asks."""

    config: AskPerson
    name: str
    models: EpisodeModels | None  # None outside of a run, where nobody can be asked
    seed: int
    system: tuple[Message, ...] = ()  # as it was shown last
    conversation: list[Message] = field(default_factory=list[Message])  # as the person is shown it
    asked: int = 0
    known: int = 0  # messages of the conversation that were part of an earlier question
    answer: Observation | None = None  # which the agent is shown next

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        """Returns the next action; a question raises `NoActionError` once it is answered."""
        answer, self.answer = self.answer, None
        if answer is None:
            self._require_free_word(observation)
            new = observation.system if observation.system != self.system else ()
            self.system = observation.system or self.system
            self.conversation += map(_in_text, (*new, *observation.messages))
            action = await super().act(observation, state)
        else:
            action = await self.base.act(answer, state)
        self.conversation.append(Message(Role.ASSISTANT, action_text(action)))
        if (question := self._question(action)) is None:
            return action
        if not question:
            raise ActionError(f'You ask nothing: write your question after "{self.config.word}:".')
        if self.asked == self.config.questions:
            raise ActionError(f"You have asked {self.asked} times, which is the most: go on without an answer.")
        await self._ask()
        raise NoActionError("the turn was a question to a person")

    def fork(self, context: AgentContext | None = None) -> AskPersonSeat:
        fork = super().fork(context)
        assert isinstance(fork, AskPersonSeat)
        fork = replace(fork, conversation=list(self.conversation))
        return fork if context is None else replace(fork, models=context.models, seed=context.params.seed)

    def _require_free_word(self, observation: Observation) -> None:
        taken = [choice for choice in observation.choices if self._text_after_word(choice) is not None]
        if taken:
            raise ConfigError(
                f"agent.word = '{self.config.word}', but '{taken[0][:60]}' is an action of the world: choose another"
            )

    def _question(self, action: Message) -> str | None:
        """Returns the question that a message asks; None where it is an action."""
        return None if action.calls else self._text_after_word(action.text)

    def _text_after_word(self, text: str) -> str | None:
        found = re.match(rf"\s*{re.escape(self.config.word)}\s*:(.*)", text, re.DOTALL | re.IGNORECASE)
        return None if found is None else found[1].strip()

    async def _ask(self) -> None:
        """Has the question answered that the conversation ends with, and keeps what the agent is shown next."""
        if self.models is None:
            raise ConfigError("the agent asks a person, who can be asked in a run alone")
        config, self.asked = self.config, self.asked + 1
        new, messages = len(self.conversation) - self.known, self.conversation
        if config.person:
            new, messages = 0, _for_model(self.conversation)
        self.known = len(self.conversation)
        try:
            answer = await self.models.ask(
                config.person or PERSON,
                messages,
                max_tokens=config.max_tokens if config.person else 0,
                temperature=config.temperature,
                seed=(self.seed + SEED_STRIDE * self.asked) % 2**63,
                purpose=f"{self.name}, question {self.asked}",
                new=new,
            )
        except TooLongError as error:
            raise ActionError("The conversation is too long to be read by whom you ask: go on without.") from error
        self.add_reward(-config.cost, {QUESTIONS: 1.0, **({"unanswered": 1.0} if answer.unanswered else {})})
        assert self.seen is not None, "the world shows something first"
        text = answer.text.rpartition("</think>")[2].strip()
        # the base knows what of the world has left its context, and shows that again, as after a refused action
        self.answer = self.base.refuse(ReplyError(text), self.seen)
        self.conversation.append(Message(Role.USER, text))


def _in_text(message: Message) -> Message:
    """Returns a message without its images, and says that there are some."""
    notes = ["(an image, which is not shown here)" for _ in message.images]
    return Message(message.role, "\n".join([message.text, *notes])) if notes else message


def _for_model(conversation: Sequence[Message]) -> list[Message]:
    """Returns a conversation, which ends with a question, as it is shown to a model that answers."""
    told = [f"{SPEAKERS[one.role]}: {one.text}" for one in conversation]
    return [Message(Role.SYSTEM, IN_PERSON), Message(Role.USER, "\n\n".join(told))]
