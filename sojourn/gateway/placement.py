"""Finds where in a session a request goes on: which earlier reply it extends, or why it begins a new context.

Clients send the whole conversation with each request, and not quite as they were told it: they trim texts, drop
thoughts, write the arguments of calls anew and give calls other ids. A reply is taken for the same where its text is
equal but for white space around it (or missing beside calls), its thought too (or missing), and its calls are equal by
name and parsed arguments, whose numbers are equal as floats. All other messages must be equal to the letter.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from sojourn.types import Message, Role, Tool, ToolCall

LATE, QUOTED = 8, 40  # replies that are looked for in a message of the user; characters of a line to be known by
SHOWN = 300  # characters of each side of a difference
Key = tuple[str, str]  # of a reply: its text, without white space around it, and its calls as JSON


class Cause(StrEnum):
    """Says why a request began a new context."""

    FIRST = "first"  # it is the session's first
    REPEATED = "repeated"  # it asks for another reply to a conversation that has none of ours
    TOOLS = "tools"  # it goes on where it was, with other tools
    REWRITTEN = "rewritten"  # it has replies of ours, but what came before the last of them was changed
    COMPACTED = "compacted"  # it begins as an earlier conversation did, but our replies, or the first of them, are gone
    SIDE = "side"  # a conversation of its own: a title, a sub-agent


@dataclass(frozen=True)
class Recorded:
    """Holds a turn of a session by its number, the conversation that it ended, with the reply as the client was told
    it, and the tools that were declared."""

    number: int
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]

    @property
    def reply(self) -> Message:
        return self.messages[-1]


class Difference(NamedTuple):
    """Says at which place a request first differs from the latest conversation, and how both go on from there."""

    place: str
    before: str = ""
    now: str = ""


class Place(NamedTuple):
    """Says where a request goes on: after the turn `parent`, by the messages `new`; or in a new context (-1), for
    `cause`. `differs` then says where it first differs from the latest conversation."""

    parent: int
    new: tuple[Message, ...]
    cause: Cause | None = None
    differs: Difference | None = None


@dataclass
class Placement:
    """Keeps the turns of a session, by what they said."""

    recorded: list[Recorded] = field(default_factory=list[Recorded])
    _by_reply: defaultdict[Key, list[Recorded]] = field(default_factory=lambda: defaultdict(list))

    def add(self, one: Recorded) -> None:
        self.recorded.append(one)
        for key in _keys(one.reply):
            self._by_reply[key].append(one)

    def find(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Place:
        """Returns where a request goes on."""
        last = next((at for at in reversed(range(len(messages))) if messages[at].role is Role.ASSISTANT), -1)
        past = messages[: last + 1]
        said = self._by_reply.get(_keys(past[-1])[0], ()) if past else ()
        fitting = [one for one in said if _same(one.messages, past)]
        same = [one for one in fitting if one.tools == tuple(tools)]
        if same:
            return Place(_best(messages[last], same).number, tuple(messages[last + 1 :]))
        cause = Cause.TOOLS if fitting else self._cause(messages)
        return Place(-1, tuple(messages), cause, self._difference(messages) if self.recorded else None)

    def recognised(self, message: Message) -> Recorded | None:
        """Returns the latest turn that said a message of the assistant; None where it is no reply of ours."""
        found = list(self._said(message))
        return _best(message, found) if found else None

    def turn_of(self, action: Message, call_id: str = "") -> int:
        """Returns the turn that an action carries out: the one with the call of this id, else the latest with such a
        call, whatever the client put before the tool's name, else the latest. An action in text is that of the latest
        turn where this holds the text, else of the latest turn that said it and nothing else, or called a tool for
        actions in text with it. It is -1 where there is no turn."""
        named, text = plain_id(call_id), action.text.strip()
        for one in reversed(self.recorded if named else ()):
            if any(plain_id(call.id) == named for call in one.reply.calls):
                return one.number
        for one in reversed(self.recorded):
            if any(_carries_out(mine, call) for mine in action.calls for call in one.reply.calls):
                return one.number
        latest = self.recorded[-1] if self.recorded else None
        if latest is None or action.calls or not text or text in latest.reply.text:
            return -1 if latest is None else latest.number
        return next((one.number for one in reversed(self.recorded) if _says(one.reply, text)), latest.number)

    def _said(self, message: Message) -> Iterator[Recorded]:
        for one in self._by_reply.get(_keys(message)[0], ()):
            if same_reply(one.reply, message):
                yield one

    def _cause(self, messages: Sequence[Message]) -> Cause:
        if not self.recorded:
            return Cause.FIRST
        if any(message.role is Role.ASSISTANT and self.recognised(message) for message in messages):
            return Cause.COMPACTED if self._lacks_the_first_reply(messages) else Cause.REWRITTEN
        if any(_same(one.messages[:-1], messages) for one in self.recorded):
            return Cause.REPEATED
        opening = _opening(messages)
        begun = [one for one in self.recorded if _same(_opening(one.messages), opening)]
        return Cause.COMPACTED if begun or self._quotes_a_reply(messages) else Cause.SIDE

    def _lacks_the_first_reply(self, messages: Sequence[Message]) -> bool:
        """Returns whether the first reply of the latest conversation with these instructions is left out of a request:
        it is not there, nor a message of the assistant in its place that could be the reply with another text."""
        instructions = _instructions(messages)
        known = (one.messages for one in reversed(self.recorded) if _same(_instructions(one.messages), instructions))
        before = next(known, ())
        at = next((n for n, message in enumerate(before) if message.role is Role.ASSISTANT), None)
        if at is None or any(same_message(before[at], message) for message in messages):
            return False
        there = messages[at] if at < len(messages) else None
        return there is None or there.role is not Role.ASSISTANT or self.recognised(there) is not None

    def _quotes_a_reply(self, messages: Sequence[Message]) -> bool:
        """Returns whether a request has the instructions of an earlier conversation, and a message of the user with the
        longest line of a late reply, which is a summary then."""
        instructions = _instructions(messages)
        if not any(_same(_instructions(one.messages), instructions) for one in self.recorded):
            return False
        text = "\n".join(message.text for message in messages if message.role is Role.USER)
        lines = (max(one.reply.text.splitlines(), key=len, default="").strip() for one in self.recorded[-LATE:])
        return any(len(line) >= QUOTED and line in text for line in lines)

    def _difference(self, messages: Sequence[Message]) -> Difference:
        """Returns where a request first differs from the latest conversation."""
        latest = self.recorded[-1].messages
        pairs = zip(latest, messages, strict=False)
        at = next((n for n, (before, now) in enumerate(pairs) if not same_message(before, now)), None)
        if at is None:
            end = f"its end: message {len(messages)} of {len(latest)} is the last"
            return Difference(end if len(messages) < len(latest) else "the tools")
        before, now = latest[at], messages[at]
        if before.role is not now.role:
            return Difference(f"message {at + 1}", f"a message of the {before.role}", f"a message of the {now.role}")
        return _parting(f"message {at + 1} of the {now.role}", before, now)


def same_message(recorded: Message, sent: Message) -> bool:
    """Returns whether a message of a conversation is the same as it was before."""
    if recorded.role is not sent.role:
        return False
    if recorded.role is Role.ASSISTANT:
        return same_reply(recorded, sent)
    return recorded.text == sent.text and recorded.images == sent.images


def same_reply(told: Message, sent: Message) -> bool:
    """Returns whether the client sent back a message of the assistant that it was told."""
    text, thought = sent.text.strip(), sent.thought.strip()
    return (
        (text == told.text.strip() or (not text and bool(told.calls)))
        and (not thought or thought == told.thought.strip())
        and (told.calls == sent.calls == () or _calls(told) == _calls(sent))
    )


def _carries_out(action: ToolCall, call: ToolCall) -> bool:
    """Returns whether a call is that of an action's tool, before whose name the client may have put its server's."""
    prefix = call.name.removesuffix(action.name)
    named = call.name == action.name or (prefix != call.name and not prefix[-1:].isalnum())
    return named and call.arguments == action.arguments


def _says(reply: Message, text: str) -> bool:
    called = (call.arguments.get("text") for call in reply.calls)
    return reply.text.strip() == text or any(isinstance(one, str) and one.strip() == text for one in called)


def plain_id(text: str) -> str:
    """Returns the id of a call by its letters and digits alone, as some clients drop the rest."""
    return re.sub(r"[^A-Za-z0-9]", "", text)


def _same(recorded: Sequence[Message], sent: Sequence[Message]) -> bool:
    return len(recorded) == len(sent) and all(map(same_message, recorded, sent))


def _best(message: Message, found: Sequence[Recorded]) -> Recorded:
    """Returns the turn whose calls have the ids of the message's, else the latest."""
    ids = [plain_id(call.id) for call in message.calls]
    named = [one for one in found if ids and ids == [plain_id(call.id) for call in one.reply.calls]]
    return (named or found)[-1]


def _instructions(messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the system messages that a conversation begins with."""
    at = next((n for n, message in enumerate(messages) if message.role is not Role.SYSTEM), len(messages))
    return messages[:at]


def _opening(messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the system messages that a conversation begins with, and its first message of the user."""
    return messages[: len(_instructions(messages)) + 1]


def _keys(reply: Message) -> list[Key]:
    """Returns the keys of a reply: with its text, and without where it has calls."""
    calls, text = _calls(reply), reply.text.strip()
    return [(text, calls), ("", calls)] if text and reply.calls else [(text, calls)]


def _calls(reply: Message) -> str:
    """Returns the names and arguments of calls as JSON, with numbers as clients in JavaScript read them: what was
    sampled as 9.0 comes back as 9. True and 1 stay apart."""
    calls = [(call.name, dict(call.arguments)) for call in reply.calls]
    if not calls:
        return ""
    return json.dumps(json.loads(json.dumps(calls, sort_keys=True), parse_int=_number, parse_float=_number))


def _number(text: str) -> float | str:
    """Returns a number as a float, without the sign of a zero; one that no float holds stays a text."""
    number = float(text) + 0.0
    return number if math.isfinite(number) else text


def _parting(place: str, before: Message, now: Message) -> Difference:
    """Returns the first place where two messages of one role differ, in the text or else in what they have besides."""
    parts = [
        ("", before.text, now.text),
        (", its reasoning", before.thought, now.thought),
        (", its calls", _calls(before), _calls(now)),
        (", its images", " ".join(before.images), " ".join(now.images)),
    ]
    name, old, new = next((part for part in parts if part[1].strip() != part[2].strip()), parts[0])
    at = next((n for n, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), None)
    at = min(len(old), len(new)) if at is None else at
    return Difference(f"{place}{name}, from character {at + 1} on", old[at : at + SHOWN], new[at : at + SHOWN])
