"""Finds where in a session a request goes on: which earlier reply it extends, or why it begins a new context.

Clients send the whole conversation with each request, and not quite as they were told it: they trim texts, drop
thoughts, write the arguments of calls anew and give calls other ids. A reply is taken for the same where its text is
equal but for white space around it (or missing beside calls), its thought too (or missing), and its calls are equal by
name and parsed arguments, whose numbers are equal as floats. All other messages must be equal to the letter.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter, defaultdict
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
    it, the tools that were declared, and the turn that the conversation goes on from (-1: none)."""

    number: int
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    parent: int = -1

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
    `cause`. `differs` then says where it first differs from the latest conversation. `messages` are all of it, and
    `tools` those that it declares: what was recorded before is the same object there, so that it is held once."""

    parent: int
    new: tuple[Message, ...]
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    cause: Cause | None = None
    differs: Difference | None = None


class _Answer(NamedTuple):
    """Holds a turn, and how many equal replies its conversation has before it since the user spoke last."""

    recorded: Recorded
    number: int


@dataclass
class Placement:
    """Keeps the turns of a session, by what they said."""

    recorded: list[Recorded] = field(default_factory=list[Recorded])
    _by_reply: defaultdict[Key, list[Recorded]] = field(default_factory=lambda: defaultdict(list))
    _by_question: defaultdict[tuple[str, Key], list[_Answer]] = field(default_factory=lambda: defaultdict(list))
    _before: dict[int, int] = field(default_factory=dict[int, int])  # our reply before each turn in its conversation

    def add(self, one: Recorded) -> None:
        for key in _keys(one.reply):
            self._by_reply[key].append(one)
        found = {} if one.parent >= 0 else self.ours(one.messages[:-1])
        self._before[one.number] = found[max(found)].number if found else one.parent
        *_, (_, question, number) = _answers(one.messages)
        self._by_question[question].append(_Answer(one, number))
        self.recorded.append(one)

    def ours(self, messages: Sequence[Message]) -> dict[int, Recorded]:
        """Returns the turns whose replies the messages of the assistant are, by their places. Equal words are no sign
        of that, as a session may be of many people: the user has said the same before, and of equal replies to that,
        the first is the first, and so on, where no ids of calls say which it is. They are of one recorded conversation,
        where one has them."""
        found: dict[int, Recorded] = {}
        line: set[int] = set()  # the turns of the conversation that has the reply found last
        for at, question, number in reversed(list(_answers(messages))):
            message = messages[at]
            same = [one for one in self._by_question.get(question, ()) if same_reply(one.recorded.reply, message)]
            said = _named(message, [one.recorded for one in same]) or [
                one.recorded for one in same if one.number == number
            ]
            if said:
                latest = ([one for one in said if one.number in line] or said)[-1]
                found[at] = latest
                line = line if latest.number in line else set(self._line(latest.number))
        return found

    def _line(self, number: int) -> Iterator[int]:
        """Yields a turn and those before it in its conversation."""
        while number >= 0:
            yield number
            number = self._before[number]

    def find(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Place:
        """Returns where a request goes on."""
        last = next((at for at in reversed(range(len(messages))) if messages[at].role is Role.ASSISTANT), -1)
        past = messages[: last + 1]
        said = self._by_reply.get(_keys(past[-1])[0], ()) if past else ()
        fitting = [one for one in said if _same(one.messages, past)]
        same = [one for one in fitting if one.tools == tuple(tools)]
        if same:
            known, new = _best(messages[last], same), tuple(messages[last + 1 :])
            return Place(known.number, new, (*known.messages, *new), known.tools)
        cause = Cause.TOOLS if fitting else self._cause(messages)
        differs = self._difference(messages) if self.recorded else None
        return Place(-1, tuple(messages), tuple(messages), tuple(tools), cause, differs)

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
    return (_named(message, found) or found)[-1]


def _named(message: Message, found: Sequence[Recorded]) -> Sequence[Recorded]:
    """Returns the turns whose calls have the ids of the message's."""
    ids = [plain_id(call.id) for call in message.calls]
    return [one for one in found if ids and ids == [plain_id(call.id) for call in one.reply.calls]]


def _instructions(messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the system messages that a conversation begins with."""
    at = next((n for n, message in enumerate(messages) if message.role is not Role.SYSTEM), len(messages))
    return messages[:at]


def _opening(messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the system messages that a conversation begins with, and its first message of the user."""
    return messages[: len(_instructions(messages)) + 1]


def _answers(messages: Sequence[Message]) -> Iterator[tuple[int, tuple[str, Key], int]]:
    """Yields for each message of the assistant its place, a digest of what the user said before it with its key, and
    how many equal ones are before it since the user spoke last."""
    said = hashlib.blake2b(digest_size=16)
    equal: Counter[Key] = Counter()
    for at, message in enumerate(messages):
        if message.role is Role.USER:
            said.update(repr((message.text, message.images)).encode())
            equal.clear()
        elif message.role is Role.ASSISTANT:
            key = _keys(message)[-1]
            yield at, (said.hexdigest(), key), equal[key]
            equal[key] += 1


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
