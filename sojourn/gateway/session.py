"""A client's session: its requests become turns, each sampled from the exact tokens of those before it."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from sojourn.abilities import Tell, sample_telling
from sojourn.errors import ActionError, BudgetError, RenderError, SojournError
from sojourn.errors import cause as words_of
from sojourn.event_loop import cancelled
from sojourn.gateway import conversation, request_notes
from sojourn.gateway.conversation import Ours, joined
from sojourn.gateway.exchange import Exchanges
from sojourn.gateway.parts import Parts, parts_of
from sojourn.gateway.placement import Cause, Difference, Place, Placement, Recorded
from sojourn.gateway.requests import ChatRequest, Finish, Reply, RequestError
from sojourn.protocols import AgentContext
from sojourn.render.choices import tokens_of
from sojourn.render.partial import PartialReader, PartialReply, ReadsPartialReplies
from sojourn.render.text import HasCodec
from sojourn.seeds import seed_of
from sojourn.types import (
    Ending,
    IntArray,
    Message,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Stop,
    ToolCall,
    Trajectory,
    Turn,
)

LONGEST_NAME, MOST_COUNTS = 64, 1000  # of what clients send: they may send anything
MOST_CHARACTERS = 128  # for each token of a context, which none has on average
Sampling = Literal["recipe", "client"]
SETTLE_S = 0.01
KEPT_BODIES = 4  # with which later ones are compared
BUSY = "busy"  # in place of a prompt: the request was refused unread


@dataclass(eq=False)
class Session:
    """Holds what one agent has asked of the gateway, in an episode or while it serves.

    `sampling` says whose temperature and the like count: the recipe's, as what is trained was sampled by it, or the
    client's. At most `turns_at_most` replies are given (0: any number). `observe` is given each reply once, when it is
    recorded. `read_back` says how a reply is read when its client sends it again. `counts` counts the requests by why
    they began a new context (`window_...`), the fields of requests that changed nothing (`unused_...`), and
    `repeated_requests`.
    """

    key: str
    context: AgentContext
    sampling: Sampling = "recipe"
    turns_at_most: int = 0
    observe: Callable[[Reply], None] = lambda reply: None
    read_back: Callable[[Message], Message] = lambda told: told
    turns: list[Turn] = field(default_factory=list[Turn])
    placement: Placement = field(default_factory=Placement)
    counts: Counter[str] = field(default_factory=Counter[str])
    bodies: dict[int, str] = field(default_factory=dict[int, str])  # of requests, by turn: the latest ones
    ending: Ending | None = None  # why no further turn can be taken
    failures: dict[str, str] = field(default_factory=dict[str, str])  # of the engine, by prompts without a reply since
    asked: Counter[str] = field(default_factory=Counter[str])  # how often each prompt was sampled from
    running: int = 0  # replies that were asked for and are no turns yet
    delivered: set[int] = field(default_factory=set[int])  # turns that a client was sent
    closed: bool = False
    exchanges: Exchanges = field(init=False)

    def __post_init__(self) -> None:
        self.exchanges = Exchanges(self)

    async def reply(
        self, request: ChatRequest, tell: Callable[[int, Sequence[int]], None] | None = None
    ) -> list[Reply]:
        """Returns the replies to a request, each a turn of the session by then. Meanwhile `tell` is called with the
        number of a reply and its next tokens, as they come. Raises `RequestError`."""
        self.counts.update(f"unused_{name[:LONGEST_NAME]}" for name in request.unused if len(self.counts) < MOST_COUNTS)
        if self.closed:
            raise RequestError("this session is closed: its episode is over", status=404, code="no_session")
        if request.unlisted and self.sampling == "client":
            raise RequestError(
                f"{request.unlisted} asks for a format whose replies cannot be listed, and no other is kept here: "
                "expected a JSON Schema with const, enum or boolean, or no format", param=request.unlisted,
            )  # fmt: skip
        self._require_turns(request.samples)
        place = self._place(request)
        prompt, new = self._prompt(place)
        self.ending, refused = None, BUSY in self.failures  # the client made room since, and may come again
        self.running += request.samples
        try:
            found = await self._samples(request, prompt, tell)
            sampled = [one for one in found if not isinstance(one, BaseException)]
            replies = [self._record(request, place, prompt, new, sample) for sample in sampled]
        finally:
            self.running -= request.samples
        if failed := [one for one in found if isinstance(one, BaseException)]:
            raise failed[0]
        if self.failures:
            self.failures.pop(_digest(prompt), None)
        if refused:
            self.failures.pop(BUSY, None)
        return replies

    def refuse_as_busy(self, error: RequestError) -> None:
        """Takes note that a request was refused as the server is busy, until a later one has a reply."""
        self.failures[BUSY] = str(error)

    @property
    def failure(self) -> str:
        """Returns why the engine or the server gave no reply to a request that has none since; mostly empty."""
        return next(reversed(self.failures.values()), "")

    async def _samples(
        self, request: ChatRequest, prompt: Prompt, tell: Callable[[int, Sequence[int]], None] | None
    ) -> list[Sample | BaseException]:
        """Returns as many samples as a request asks for, or why there is none."""
        tells = [tell and partial(tell, number) for number in range(request.samples)]
        asked = [self._sampled(request, prompt, number, one) for number, one in enumerate(tells)]
        if len(asked) == 1:  # without a further task
            try:
                return [await asked[0]]
            except Exception as error:
                return [error]
        return await asyncio.gather(*asked, return_exceptions=True)

    async def settled(self) -> None:
        """Waits until no reply is under way, as one may be whose client has left."""
        while self.running:  # noqa: ASYNC110 - rare, and short
            await asyncio.sleep(SETTLE_S)

    def close(self) -> None:
        """Ends the sampling of all replies that are under way, as nobody is to have them, and gives no further one."""
        self.closed = True
        self.exchanges.cancel()

    def prompt_tokens(self, request: ChatRequest) -> int:
        """Returns how many tokens the prompt of a request has; nothing is sampled."""
        ending = self.ending
        try:
            whole, _ = self._prompt(self._place(request))
        finally:
            self.ending = ending
        return len(whole.tokens)

    def trajectory(self, ending: Ending) -> Trajectory:
        """Returns all turns of the session. Those that no client was sent have the info `undelivered`."""
        context = self.context
        turns = [
            turn if number in self.delivered else replace(turn, info={**turn.info, "undelivered": 1.0})
            for number, turn in enumerate(self.turns)
        ]
        return Trajectory(context.name, tuple(turns), ending, context.trainable, model=context.params.model)

    def add_reward(self, number: int, reward: float, info: Mapping[str, float], state: str | None = None) -> None:
        """Adds to the reward and the info of a turn, and says in which state of the world it acted first."""
        turn = self.turns[number]
        state = state if turn.state is None else turn.state
        self.turns[number] = replace(turn, reward=turn.reward + reward, info={**turn.info, **info}, state=state)

    def note(self, number: int, notes: Mapping[str, str]) -> None:
        """Adds notes to a turn."""
        self.turns[number] = replace(self.turns[number], notes={**self.turns[number].notes, **notes})

    def _require_turns(self, samples: int) -> None:
        begun = len(self.turns) + self.running
        if self.turns_at_most and begun + samples > self.turns_at_most:
            self.ending = Ending.TURNS
            raise RequestError(
                f"this session may have {self.turns_at_most} replies, and has asked for {begun} before: "
                "no further one is given", status=403, code="turn_limit",
            )  # fmt: skip

    def _place(self, request: ChatRequest) -> Place:
        """Returns where a request goes on; raises `RequestError` where that is too long for any context."""
        messages, limit = conversation.readable(request), self.context.max_context
        characters = conversation.characters(messages, request.tools)
        if characters > MOST_CHARACTERS * limit:  # it would take long to find out how many tokens these are
            raise self._full(f"a context has at most {limit} tokens, but these messages have {characters} characters")
        return self.placement.find(messages, request.tools)

    def _prompt(self, place: Place) -> tuple[Prompt, Prompt]:
        """Returns the whole prompt, and what is new of it since the sample of the parent turn."""
        renderer = self.context.renderer
        try:
            if place.parent >= 0:
                sample = self.turns[place.parent].sample
                more = renderer.extend(sample, place.new)
                if more is not None:
                    past = Trajectory("", tuple(self.turns), Ending.DONE).prompt(place.parent)
                    return joined(past, sample.tokens, more.tokens), more
            ours = {
                at: Ours(self.turns[one.number].sample, one.reply.thought)
                for at, one in self.placement.ours(place.messages).items()
            }
            whole = conversation.new_context(renderer, place.messages, place.tools, ours)
        except RenderError as error:
            raise RequestError(f"the conversation cannot be rendered: {error}", param="messages") from None
        return whole, whole

    def reader(self, request: ChatRequest) -> PartialReader:
        """Returns what reads a reply to a request as its tokens come."""
        return PartialReader(self.context.renderer, (*self.context.params.stop_strings, *request.stop))

    async def _sampled(self, request: ChatRequest, prompt: Prompt, number: int, tell: Tell | None) -> Sample:
        params = self._params(request, prompt, number)
        try:
            sample = await sample_telling(self.context.sampler, prompt, params, tell)
        except BudgetError as error:
            raise self._full(str(error)) from None
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and cancelled():
                raise
            self.failures[_digest(prompt)] = words_of(error)
            if isinstance(error, Exception) and not isinstance(error, SojournError):
                raise
            raise RequestError(
                f"the model gave no reply: {words_of(error)}", status=503, code="engine_failed"
            ) from error
        return sample

    def _params(self, request: ChatRequest, prompt: Prompt, number: int) -> SamplingParams:
        """Returns how to sample a reply. Its seed follows from the session's, the prompt, and how often that was
        sampled from before, so that it does not depend on which requests are answered beside it. Where the client's own
        seed counts, it follows from that, the prompt, and the reply's number in the request alone."""
        context, given = self.context, self.context.params
        room = context.max_context - len(prompt.tokens)
        if room < 1:
            raise self._full(f"a context has at most {context.max_context} tokens, but these messages take "
                             f"{len(prompt.tokens)}: no room to reply")  # fmt: skip
        digest = _digest(prompt)
        self.asked[digest] += 1
        limit = request.max_tokens or given.max_tokens
        own = None if self.sampling == "recipe" else request.seed
        chosen = self._chosen(request.choices) if request.choices else ()
        params = replace(
            given,
            max_tokens=min(limit, given.max_tokens, room),
            seed=seed_of(given.seed, digest, self.asked[digest]) if own is None else seed_of(own, digest, number),
            stop_strings=(*given.stop_strings, *request.stop) if not chosen else (),
            choices=chosen,
        )
        if self.sampling == "recipe":
            return params
        temperature = given.temperature if request.temperature is None else request.temperature
        top_p = given.top_p if request.top_p is None else request.top_p
        top_k = given.top_k if request.top_k is None else max(request.top_k, 0)  # -1, too, says all
        return replace(params, temperature=temperature, top_p=top_p, top_k=top_k)

    def _chosen(self, choices: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        try:
            return tokens_of(self.context.renderer, choices)
        except SojournError as error:
            raise RequestError(f"the replies that the format lists cannot be chosen from: {error}") from None

    def _full(self, reason: str) -> RequestError:
        self.ending = Ending.TOKENS
        return RequestError(reason, code="context_length_exceeded", param="messages")

    def _record(
        self,
        request: ChatRequest,
        place: Place,
        prompt: Prompt,
        new: Prompt,
        sample: Sample,
    ) -> Reply:
        """Makes a reply a turn of the session."""
        number, parent = len(self.turns), place.parent if new is not prompt else -1
        cause = place.cause or (Cause.REWRITTEN if parent < 0 else None)
        info = {f"window_{cause}": 1.0} if cause and cause is not Cause.FIRST else {}
        if cause:
            self.counts[f"window_{cause}"] += 1
        notes = {**self._request_notes(request, number, parent), **_context_notes(cause, place)}
        message, told, stop_string = self._told(sample, request, number)
        info |= {"malformed": 1.0} if message is None else {}
        messages = place.messages
        told_before = [at for at, one in enumerate(messages) if one.role is Role.ASSISTANT] if parent < 0 else []
        split = told_before[-1] + 1 if told_before else 0
        turn = Turn(
            parent, new.tokens, sample, message, info=info, observed=place.new if parent >= 0 else messages[split:],
            context_messages=messages[:split], tools=place.tools if parent < 0 else (), notes=notes,
        )  # fmt: skip
        self.turns.append(turn)
        self.placement.add(Recorded(number, (*messages, self.read_back(told)), place.tools, place.parent))
        known = len(prompt.tokens) - len(new.tokens)
        finish = _finish(sample, told, stop_string)
        listed = told.text if request.logprobs else ""
        read = listed or told.thought
        parts = parts_of(self.context.renderer, sample.tokens, told.thought, listed) if read else Parts()
        reply = Reply(
            number=number, turn=turn, message=told, finish=finish, prompt_tokens=len(prompt.tokens),
            cached_tokens=known, stop_string=stop_string, parts=parts,
        )  # fmt: skip
        self.observe(reply)
        return reply

    def _request_notes(self, request: ChatRequest, number: int, parent: int) -> dict[str, str]:
        """Returns the notes on a request; its body is kept as what is new since that of the parent turn or, in a new
        context, of the latest one."""
        if request.received is None:
            return {}
        base = parent if parent in self.bodies else max(self.bodies, default=-1)
        notes = request_notes.of_request(request.received, request.stream, self.bodies.get(base, ""), base)
        self.bodies[number] = request.received.body
        while len(self.bodies) > KEPT_BODIES:
            del self.bodies[next(iter(self.bodies))]
        return notes

    def _told(self, sample: Sample, request: ChatRequest, number: int) -> tuple[Message | None, Message, str]:
        """Returns the message that was sampled (None where it cannot be read), and what the client is told, with the
        stop string that ended it. A reply that cannot be read is told as the thought and the text that it is, and so is
        one with calls where the request has no tools, or wants none called."""
        try:
            message = self.context.renderer.parse(sample.tokens.tolist())
        except ActionError:
            message = None
        calling = request.calls and bool(request.tools)
        told = message if message and (calling or not message.calls) else self._as_text(sample.tokens)
        stops = [*self.context.params.stop_strings, *request.stop] if sample.stop is Stop.END else []
        at, stop = min(((told.text.find(text), text) for text in stops if text in told.text), default=(-1, ""))
        if stop:
            told = replace(told, text=told.text[:at])
        calls = tuple(
            ToolCall(call.name, call.arguments, f"call{_tag(self.key)}{number:05d}{at:02d}")
            for at, call in enumerate(told.calls)
        )
        return message, replace(told, calls=calls), stop

    def _as_text(self, tokens: IntArray) -> Message:
        """Returns a reply in which what was to be a call is text."""
        renderer = self.context.renderer
        kept = tokens[:-1] if len(tokens) and int(tokens[-1]) in renderer.stops else tokens
        told = PartialReply("", renderer.codec.decode(kept) if isinstance(renderer, HasCodec) else "")
        if isinstance(renderer, ReadsPartialReplies):
            told = renderer.parse_partial(told.text, ended=True)
        return Message(Role.ASSISTANT, told.text, told.thought)


def _context_notes(cause: Cause | None, place: Place) -> dict[str, str]:
    if cause is None:
        return {}
    return request_notes.of_context(cause, place.differs or Difference("nowhere: the chat format rewrites history"))


def _finish(sample: Sample, told: Message, stop_string: str) -> Finish:
    if stop_string:
        return "stop_string"
    if told.calls:
        return "calls"
    return "length" if sample.stop is Stop.LENGTH else "stop"


def _digest(prompt: Prompt) -> str:
    return hashlib.blake2b(prompt.tokens.tobytes(), digest_size=16).hexdigest()


def _tag(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=4).hexdigest()
