"""Learns how a chat template writes thoughts and tool calls by rendering words that none has, and finding them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from sojourn.errors import ActionError, RenderError
from sojourn.render.call_json import call_of, read_json, read_object
from sojourn.render.partial import text_so_far, thought_so_far
from sojourn.render.program import CUTS, Program, call_id
from sojourn.types import Message, Role, Tool, ToolCall

PROBE = (Message(Role.USER, "q"),)
NAMES, KEYS, WORD, THOUGHT = ("zqa", "zqb"), ("zqk", "zql"), "zqword", "zqthought"
TOOLS = tuple(Tool(name, "A tool.", {"type": "object", "properties": {}}) for name in NAMES)
OPENED = re.compile(r"<think>\s*(</think>\s*)?$")
NAME, MIDDLE = '{"name": "', re.compile(r'", "(\w+)": ')
PARTS = re.compile(r"[^\s\[\]{}<>]+|[\[\]{}<>]")
CALLED = re.compile(r"[^\s\"'{}<>|\[\]]+")  # a function's name


class ThoughtForm(NamedTuple):
    """Says how a reply with a thought is written: the thought stands between `start` and `end`; `plain` comes before
    the text of any reply, as the channel of gpt-oss does."""

    start: str = ""
    end: str = ""
    plain: str = ""

    def split(self, text: str, opened: bool) -> tuple[str, str]:
        """Returns the thought and what follows it. Raises `ActionError` for a thought that is not closed."""
        mark = self.start.strip()
        if opened or (mark and text.lstrip().startswith(mark)):
            body = text if opened else text.lstrip().removeprefix(mark)
            thought, closed, rest = body.partition(self.end.strip())
            if not closed:
                raise ActionError(
                    f"Your thought was not closed: think more briefly, write {self.end.strip()}, then say your action."
                )
            blank = self.end[len(self.end.rstrip()) :]
            rest = rest[len(blank) :] if rest.startswith(blank) else rest.removeprefix("\n").removeprefix("\n")
            return thought.strip(), rest.removeprefix(self.plain)
        return "", text.removeprefix(self.plain)

    def split_partial(self, text: str, opened: bool, *, ended: bool) -> tuple[str, str]:
        """Returns of a reply that may go on, or has `ended` with an unclosed thought, what is known of its thought and
        of what follows."""
        start, end, said = self.start.strip(), self.end.strip(), text.lstrip()
        thought, rest, blanks = "", text, ("",)
        if opened or (start and said.startswith(start)):
            body = text if opened else said.removeprefix(start)
            thought, closed, rest = body.partition(end)
            if not closed:
                return thought.strip() if ended else thought_so_far(thought, end), ""
            blanks = (self.end[len(self.end.rstrip()) :], "\n\n", "\n", "")
        elif not ended and start.startswith(said):
            return "", ""
        if not ended and any(f"{blank}{self.plain}".startswith(rest) for blank in blanks):
            return thought.strip(), ""
        return self.split(text, opened)


class CallForm(NamedTuple):
    """Says how tool calls are written: `before` name `middle` arguments `after`, with `between` from one call to the
    next (None where a reply has one call at most). `texts` says whether text may stand before a call.

    A form with a `key` writes each call as one JSON object, with the name under "name" and the arguments under that
    key: it is read in any order of its keys. With `ids` it writes ids, by which answers name the calls: those that the
    model wrote are kept.
    """

    before: str
    middle: str
    after: str
    between: str | None
    stop: str  # the control token that ends a reply with calls
    texts: bool
    mark: str  # a reply with this text, blanks aside, is a call
    key: str = ""
    ids: bool = False

    def parse(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """Returns the text before the calls, and the calls. Raises `ActionError` with a message for the model."""
        if (place := self._place(text)) is None:
            return text, ()
        calls, rest, opening = [], text[place:], self.before
        while True:
            call, rest = self._one(rest, opening)
            calls.append(call)
            if self.between is None or match_loosely(self.between, rest) is None:
                break
            opening = self.between
        if (end := match_loosely(self.after, rest)) is None:
            raise ActionError(f"Your tool call was not finished: write {self.example}.")
        return (text[:place] + rest[end:]).strip(), tuple(calls)

    def so_far(self, text: str) -> str:
        """Returns what is known of the text of a reply that may go on, with calls or without."""
        place = self._place(text)
        if self.texts:
            return text_so_far(text, self.mark, place)
        begins = "".join(self.mark.split()).startswith("".join(text.split()))
        return "" if begins or place is not None else text

    @property
    def example(self) -> str:
        """Returns a call as the model is to write it."""
        inner = f'{{"name": "...", "{self.key}": {{...}}}}' if self.key else f"...{self.middle}{{...}}"
        return f"{self.before.strip()}{inner}{self.after}".strip()

    def problem(self, message: Message) -> str:
        """Returns the mark that a message's text spells, which would be read back as a call; else nothing."""
        return self.mark if self._place(message.text) is not None else ""

    def _place(self, text: str) -> int | None:
        """Returns where the calls begin."""
        pattern = re.compile(_loose(self.mark))
        found = pattern.search(text) if self.texts else pattern.match(text)
        return found.start() if found else None

    def _one(self, text: str, opening: str) -> tuple[ToolCall, str]:
        """Reads one call; returns it and the text after it."""
        unfinished = f"Your tool call was not finished: write {self.example}."
        if (start := match_loosely(opening, text)) is None:
            raise ActionError(unfinished)
        if self.key:
            return read_object(text[start:], self.key, self.example, ids=self.ids)
        found = CALLED.match(text, start)
        end = match_loosely(self.middle, text[found.end() :]) if found else None
        if found is None or end is None:
            raise ActionError(unfinished)
        arguments, rest = read_json(text[found.end() + end :], self.example)
        return call_of(found[0], arguments, self.example), rest


def match_loosely(literal: str, text: str) -> int | None:
    """Returns where `text` goes on after `literal`, blanks aside; None where it is not there."""
    found = re.match(_loose(literal) + r"\s*", text)
    return found.end() if found else None


def _loose(literal: str) -> str:
    """Returns the pattern of a text that may have blanks around brackets and where it has blanks."""
    return r"\s*" + r"\s*".join(re.escape(part) for part in PARTS.findall(literal))


def declares_tools(program: Program) -> bool:
    """Returns whether the template writes the tools that it is given."""
    text = _try(program, PROBE, tools=TOOLS)
    return text is not None and all(name in text for name in NAMES)


def switches_thinking(program: Program) -> bool:
    """Returns whether the template asks for thoughts where thinking is on."""
    return len({_try(replace(program, thinking=thinking), PROBE) for thinking in (False, True)}) == 2


def thought_form(program: Program) -> ThoughtForm | None:
    """Returns how the template writes thoughts; None where it leaves them out of the last reply."""
    head = program.render(PROBE, CUTS[0], prompt=True).replace(CUTS[0], "")
    plain = _reply_after(program, head, Message(Role.ASSISTANT, WORD))
    before = plain.partition(WORD)[0] if plain is not None and WORD in plain else ""
    said = _reply_after(program, head, Message(Role.ASSISTANT, WORD, THOUGHT))
    if said is None or not 0 <= said.find(THOUGHT) < said.find(WORD):
        return ThoughtForm(plain=before) if before else None
    start, _, rest = said.partition(THOUGHT)
    end = rest.partition(WORD)[0]
    if before == start + end:  # as Qwen3 writes a reply without a thought: an empty one
        return ThoughtForm(start, end)
    return ThoughtForm(start, end.removesuffix(before), before)


def call_form(program: Program, stop: str, thoughts: ThoughtForm | None) -> tuple[Program, CallForm] | None:
    """Returns how the template writes calls whose arguments are JSON, and the program as it wants to be asked; None
    where it writes none, or others. Where it writes an empty thought before them, that is no part of the form."""
    empty_thought = thoughts.start + thoughts.end if thoughts is not None else ""
    calls = tuple(ToolCall(name, {key: "v"}) for name, key in zip(NAMES, KEYS, strict=True))
    for asked in _ways(program):
        one = _called(asked, Message(Role.ASSISTANT, calls=calls[:1]))
        if one is None or (parts := _parts(one, 0)) is None:
            continue
        before, middle, after = parts
        before = before.removeprefix(empty_thought)
        two = _called(asked, Message(Role.ASSISTANT, calls=calls))
        between = _between(two, middle) if two is not None else None
        text = _called(asked, Message(Role.ASSISTANT, WORD, calls=calls[:1]))
        ending = _ending(program, after, stop)
        after = after.rpartition(ending)[0] if ending else after
        texts = text is not None and WORD in text and text.index(WORD) < text.index(NAMES[0])
        opening = [text for text in program.codec.controls if before.strip().startswith(text)]
        form = CallForm(before, middle, after, between, ending or stop, texts, max(opening, default=before.strip()))
        return asked, _as_objects(form._replace(ids=call_id(0) in one))
    return None


def _as_objects(form: CallForm) -> CallForm:
    """Returns a form whose calls are JSON objects as one that reads whole objects; any other as it is."""
    key = MIDDLE.fullmatch(form.middle)
    if key is None or not form.before.endswith(NAME):
        return form
    between = form.between.partition("}")[2].removesuffix(NAME) if form.between is not None else None
    before, after = form.before.removesuffix(NAME), form.after.partition("}")[2]
    return form._replace(before=before, after=after, between=between, key=key[1])


def _ways(program: Program) -> Iterator[Program]:
    for content in ("", None):
        yield replace(program, arguments="mapping", content=content)
        yield replace(program, arguments="json", content=content)


def _called(program: Program, message: Message) -> str | None:
    head = _try(program, PROBE, tools=TOOLS)
    whole = _try(program, (*PROBE, message), tools=TOOLS, prompt=False)
    if head is None or whole is None:
        return None
    return next((whole[len(base) :] for base in (head, opening_of(head)) if whole.startswith(base)), None)


def _parts(text: str, number: int) -> tuple[str, str, str] | None:
    arguments = json.dumps({KEYS[number]: "v"})
    place, start = text.find(NAMES[number]), text.find(arguments)
    if not 0 <= place < start:
        return None
    end = place + len(NAMES[number])
    return text[:place], text[end:start], text[start + len(arguments) :]


def _between(text: str, middle: str) -> str | None:
    """Returns what stands between two calls, or None where they are not written one like the other."""
    first, second = _parts(text, 0), _parts(text, 1)
    if first is None or second is None or first[1] != middle or second[1] != middle:
        return None
    return first[2].partition(NAMES[1])[0]


def _ending(program: Program, after: str, stop: str) -> str:
    """Returns the control token that ends a reply with calls: the usual one, else the last that the template writes."""
    if stop in after:
        return stop
    found = {after.rfind(text): text for text in program.codec.controls if text in after}
    return found[max(found)] if found else ""


def opening_of(head: str) -> str:
    """Returns the header of the assistant's turn without the thinking section that the prompt opens, or leaves
    empty."""
    return OPENED.sub("", head)


def _reply_after(program: Program, head: str, message: Message) -> str | None:
    whole = _try(program, (*PROBE, message), prompt=False)
    return whole[len(head) :] if whole is not None and whole.startswith(head) else None


def _try(program: Program, messages: Any, tools: tuple[Tool, ...] = (), prompt: bool = True) -> str | None:
    try:
        return program.render(messages, CUTS[0], tools, prompt=prompt).replace(CUTS[0], "")
    except RenderError:
        return None
