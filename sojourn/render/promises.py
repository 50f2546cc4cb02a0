"""Judges what every renderer promises: an extended context equals the context rendered afresh, token for token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sojourn.errors import ActionError, RenderError
from sojourn.protocols import Renderer
from sojourn.types import IntArray, Message, Role, Sample, Stop, Tool, ToolCall, Versions
from sojourn.verdict import Outcome, Verdict, raised

AFRESH = "extending equals rendering afresh: "
SHOWN = 8  # tokens shown on each side of a difference
DIFFICULT_TEXTS = (
    " leading",
    "trailing \n",
    "\n\n",
    "naïve 日本語 😀 \u200b",
    "tab\tand\r\nreturn",
    "0123456789",
    "<b>&amp;</b>",
)
TOOLS = (Tool("look", "Look somewhere.", {"type": "object", "properties": {"where": {"type": "string"}}}),)
CALL = Message(
    Role.ASSISTANT, calls=(ToolCall("look", {"where": "north", "how": {"far": 2, "ünïcode": [True, None]}}),)
)


class Finding(NamedTuple):
    outcome: Outcome
    detail: str = ""


PASSED = Finding(Outcome.PASSED)


class Exchange(NamedTuple):
    """A reply of the assistant, and the messages after it."""

    reply: Message
    after: tuple[Message, ...]


class Conversation(NamedTuple):
    name: str
    opening: tuple[Message, ...]
    exchanges: tuple[Exchange, ...]
    tools: tuple[Tool, ...] = ()


def _user(text: str) -> tuple[Message, ...]:
    return (Message(Role.USER, text),)


def _reply(text: str, thought: str = "") -> Message:
    return Message(Role.ASSISTANT, text, thought)


REPLIES = {
    "text": tuple(_reply(text) for text in ("go north", "", *DIFFICULT_TEXTS)),
    "tool calls": (CALL, replace(CALL, text="I look."), replace(CALL, calls=CALL.calls * 2)),
    "thoughts": (_reply("go north", "A wall is south."),),
}


def conversations(controls: Sequence[str]) -> list[Conversation]:
    """Returns the conversations to render; `controls` are the spellings of the format's control tokens."""
    system = Message(Role.SYSTEM, "You are in a maze.")
    answer = Message(Role.TOOL, '{"seen": "wall"}', answers="look")
    typed = " ".join(controls)
    return [
        Conversation("text", _user("Where?"), (Exchange(_reply("go north"), _user("A wall.")),) * 2),
        Conversation("system", (system, *_user("Where?")), (Exchange(_reply("go north"), _user("A wall.")),)),
        Conversation(
            "unicode and blanks",
            _user("".join(DIFFICULT_TEXTS)),
            tuple(Exchange(_reply(t), _user(t)) for t in DIFFICULT_TEXTS),
        ),
        Conversation("empty messages", _user(""), (Exchange(_reply(""), _user("")), Exchange(_reply("a"), _user("b")))),
        Conversation("typed control tokens", _user(typed), (Exchange(_reply("go"), _user(f"x{typed}y")),)),
        Conversation(
            *("tool calls", (system, *_user("Look."))),
            (Exchange(CALL, (answer,)), Exchange(_reply("done"), _user("Again.")), Exchange(CALL, (answer, answer))),
            TOOLS,
        ),
        Conversation(
            *("thoughts", _user("Where?")),
            (Exchange(_reply("go north", "A wall is south."), _user("A wall.")), Exchange(_reply("go"), _user("No."))),
        ),
        Conversation(
            *("thoughts between tool calls", _user("Look.")),
            (Exchange(replace(CALL, thought="Let me look."), (answer,)), Exchange(_reply("go", "So."), _user("No."))),
            TOOLS,
        ),
    ]


def verdicts(renderer: Renderer, tokenizer: Any) -> Iterator[Verdict]:
    """Yields the verdict on each promise of a renderer.

    Where the format rewrites history, `extend` must return None; a warning says at which tokens. A message that the
    format cannot express (`RenderError`) counts as not offered.
    """
    controls = spellings(tokenizer) if tokenizer is not None else []
    for conversation in conversations(controls):
        yield _judge(AFRESH + conversation.name, _extends, renderer, conversation, tokenizer)
    yield _judge("a truncated sample is closed", _closes_truncated, renderer)
    for name, messages in REPLIES.items():
        yield _judge(f"a reply reads back: {name}", _reads_back, renderer, messages)
    yield _judge("an unfinished tool call is refused", _refuses_unfinished_call, renderer)
    yield _judge("a reply ends at its stop token", _ends_with_stop_token, renderer)
    typed = "typed text gives no control token"
    if tokenizer is None:
        yield Verdict(typed, Outcome.NOT_JUDGED, "no tokenizer was given")
    else:
        yield _judge(typed, _typed_text_is_plain, renderer, tokenizer, controls)


def spellings(tokenizer: Any) -> list[str]:
    """Returns the texts of control tokens: the tokenizer's special tokens, and the tags of chat formats."""
    added = set(tokenizer.get_added_vocab())
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    turns = {text for text in added if text.startswith(("<|", "<start_of_", "<end_of_"))}
    return sorted(special | turns | ({"<think>", "</think>", "<tool_call>", "</tool_call>"} & added))[:64]


def _judge(promise: str, check: Callable[..., Finding], *arguments: Any) -> Verdict:
    try:
        return Verdict(promise, *check(*arguments))
    except RenderError as error:
        return Verdict(promise, Outcome.NOT_OFFERED, str(error))
    except Exception as error:
        return Verdict(promise, Outcome.FAILED, raised(error))


def _extends(renderer: Renderer, conversation: Conversation, tokenizer: Any) -> Finding:
    messages = list(conversation.opening)
    extended = renderer.open(messages, conversation.tools).tokens
    for number, exchange in enumerate(conversation.exchanges):
        sample = _sample(renderer.encode_reply(exchange.reply), Stop.END)
        sampled = np.concatenate([extended, sample.tokens])
        messages += [exchange.reply, *exchange.after]
        fresh = renderer.open(messages, conversation.tools).tokens
        more = renderer.extend(sample, exchange.after)
        if more is None:
            return _extend_returned_none(sampled, fresh, number, tokenizer)
        extended = np.concatenate([sampled, more.tokens])
        if (place := _difference(extended, fresh)) is not None:
            where = _around(extended, fresh, place, tokenizer)
            return Finding(Outcome.FAILED, f"turn {number}: extended, {where}: expected the same tokens")
    return PASSED


def _extend_returned_none(sampled: IntArray, fresh: IntArray, number: int, tokenizer: Any) -> Finding:
    """Describes, where `extend` returned None, at which token rendering afresh rewrites the sampled tokens."""
    place = _difference(sampled, fresh[: len(sampled)])
    if place is None:
        return Finding(Outcome.WARNED, f"turn {number}: extend gave None although nothing is rewritten here")
    where = _around(sampled, fresh, place, tokenizer)
    return Finding(Outcome.WARNED, f"turn {number}: the format rewrites history, so extend gave None: {where}")


def _closes_truncated(renderer: Renderer) -> Finding:
    """Checks that a sample without its stop token, or cut earlier, is closed and then continued like a whole one."""
    after = (Message(Role.USER, "Go on."),)
    whole = renderer.encode_reply(_reply("go north and then east"))
    ended = renderer.extend(_sample(whole, Stop.END), after)
    if ended is None:
        return Finding(Outcome.NOT_JUDGED, "extend gives None for a whole sample")
    expected = [whole[-1], *ended.tokens.tolist()]
    for cut, stop in ((1, Stop.LENGTH), (1, Stop.CHOICE), (2, Stop.LENGTH), (len(whole), Stop.LENGTH)):
        more = renderer.extend(_sample(whole[:-cut], stop), after)
        if more is not None and more.tokens.tolist() != expected:
            return Finding(
                Outcome.FAILED,
                f"a sample without its last {cut} tokens ({stop}) is followed by {more.tokens.tolist()[:SHOWN]}: "
                f"expected the stop token and then what follows a whole sample, {expected[:SHOWN]}",
            )
    return PASSED


def _reads_back(renderer: Renderer, replies: Sequence[Message]) -> Finding:
    for reply in replies:
        try:
            back = renderer.parse(renderer.encode_reply(reply))
        except ActionError as error:
            return Finding(Outcome.FAILED, f"{reply} was refused when read back: {error}")
        if back != reply:
            return Finding(Outcome.FAILED, f"{reply} reads back as {back}: expected the same")
    return PASSED


def _refuses_unfinished_call(renderer: Renderer) -> Finding:
    whole = list(renderer.encode_reply(CALL))
    for kept in range(len(whole) // 3, len(whole) - 1):
        try:
            message = renderer.parse(whole[:kept])
        except ActionError:
            continue
        if message.calls:
            return Finding(
                Outcome.FAILED, f"a call cut after {kept} of {len(whole)} tokens was read as {message.calls}"
            )
        if kept > len(whole) * 2 // 3:
            return Finding(Outcome.FAILED, f"a call cut after {kept} of {len(whole)} tokens was read as plain text")
    return PASSED


def _ends_with_stop_token(renderer: Renderer) -> Finding:
    for text in ("go north", ""):
        reply = list(renderer.encode_reply(_reply(text)))
        if not reply or reply[-1] not in renderer.stops or set(reply[:-1]) & set(renderer.stops):
            return Finding(
                Outcome.FAILED,
                f"the reply {text!r} is {reply}: expected one of {renderer.stops} at its end, and there only",
            )
    return PASSED


def _typed_text_is_plain(renderer: Renderer, tokenizer: Any, controls: Sequence[str]) -> Finding:
    """Checks that typed spellings of control tokens add no control token to what harmless text gives."""
    numbers = set(tokenizer.convert_tokens_to_ids(list(controls)))

    def structure(*messages: Message, sample: Sample | None = None) -> list[int]:
        prompt = renderer.open(messages) if sample is None else renderer.extend(sample, messages)
        return [token for token in prompt.tokens.tolist() if token in numbers] if prompt is not None else []

    last = _sample(renderer.encode_reply(_reply("go")), Stop.END)
    for text in controls:
        for typed in (text, f"a{text}b", text * 2, f"<{text}"):
            user, harmless = Message(Role.USER, typed), Message(Role.USER, "x")
            same = structure(user) == structure(harmless)
            same &= structure(user, sample=last) == structure(harmless, sample=last)
            same &= structure(harmless, _reply(typed), harmless) == structure(harmless, _reply("x"), harmless)
            if not same:
                return Finding(Outcome.FAILED, f"the text {typed!r} gives a control token: expected plain tokens")
    return PASSED


def _sample(tokens: Sequence[int], stop: Stop) -> Sample:
    return Sample(np.asarray(tokens, np.int64), np.zeros(len(tokens), np.float32), Versions(0, 0), stop)


def _difference(one: IntArray, other: IntArray) -> int | None:
    """Returns the first index at which two sequences differ; None where they are equal."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    if len(different):
        return int(different[0])
    return None if len(one) == len(other) else length


def _around(one: IntArray, other: IntArray, place: int, tokenizer: Any) -> str:
    def show(tokens: IntArray) -> str:
        window = tokens[max(place - SHOWN, 0) : place + SHOWN].tolist()
        return repr(tokenizer.decode(window)) if tokenizer is not None else str(window)

    return f"token {place} stands in {show(one)}; afresh, in {show(other)}"
