"""Masks what is private in what people ask: keys, and addresses and numbers of persons."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from sojourn.gateway.known_texts import MasksOnce
from sojourn.gateway.request_notes import READ_BODY, cut
from sojourn.gateway.requests import Api, ChatRequest, Reply, ReplyStream, RequestError
from sojourn.secrets import MASK, looks_secret, masker
from sojourn.types import Message, Tool, ToolCall

SHORTEST_CARD, LONGEST_CARD = 13, 19  # digits
SHORTEST_IBAN, LONGEST_IBAN = 15, 34  # letters and digits (ISO 13616-1)
# What a pattern tries at every place is bounded: a client may send megabytes of any character.
EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]+\.[\w.-]+\w")
IBAN = re.compile(r"(?<![A-Za-z0-9])(?=([A-Za-z]{2}[0-9]{2}(?:[ \xa0-]?[A-Za-z0-9]){11,31}))")  # at each place anew
CARD = re.compile(r"\b\d(?:[ -]?\d){12,}\b")
_BETWEEN = r"(?:[ \xa0]?[()./\u2010-\u2013-][ \xa0]?|[ \xa0])?"  # what may be between two digits of a number
_PHONES = (
    rf"00[1-9]\d{{0,2}}{_BETWEEN}(?:0\){_BETWEEN})?[1-9](?:{_BETWEEN}\d){{6,11}}",  # 0049 30 1234567, 0049 (0)30...
    rf"\(?0[1-9](?:{_BETWEEN}\d){{7,11}}",  # 030 1234567, (030) 123-4567, 01 23 45 67 89, 07700900123
    r"(?:[18][ .-]?)?\(\d{3}\)[ \xa0]?\d{3}[ .-]\d\d[ .-]?\d\d",  # (555) 123-4567, 8 (912) 345-67-89
    r"(?:1[ .-])?[2-9]\d\d(?P<same>[ .-])\d{3}(?P=same)\d{4}",  # 555-123-4567, 1 800 555 0199
    rf"(?<=tel:)\d(?:{_BETWEEN}\d){{4,14}}",
)
PHONE = re.compile(
    r"(?<!\w)(?<!\w[/-])(?<!\d[.,:])"  # it is no part of another number, of a time or of a path
    r"(?![0-3]?\d(?P<dot>[./-])[0-3]?\d(?P=dot)(?:\d\d){1,2}(?!(?P=dot)?\d))"  # and begins with no date
    rf"(?:\+\d[\d ()/-]{{7,}}\d|\+\d{{1,3}}(?:\.\d{{2,}}){{2,}}|(?:{'|'.join(_PHONES)})(?!\w))"
)


@dataclass(frozen=True)
class MaskedApi:
    """Reads as another API does, and masks what is private in the messages and the tools: so what is kept is what was
    sampled from, and holds none of it."""

    api: Api
    mask: Callable[[str], str]

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        asked = self.api.read(body)
        return replace(
            asked,
            messages=tuple(masked_message(message, self.mask) for message in asked.messages),
            tools=tuple(_tool(tool, self.mask) for tool in asked.tools),
        )

    def whole(self, request: ChatRequest, replies: Sequence[Reply]) -> Mapping[str, Any]:
        return self.api.whole(request, replies)

    def stream(self, request: ChatRequest) -> ReplyStream:
        return self.api.stream(request)

    def error(self, error: RequestError) -> Mapping[str, Any]:
        return self.api.error(error)


def masks_private() -> Callable[[str], str]:
    """Returns what masks keys, and addresses and numbers of persons."""
    without_keys = masker()

    def mask(text: str) -> str:
        text = EMAIL.sub("<email>", without_keys(text))
        return PHONE.sub("<phone>", CARD.sub(_without_cards, _without_ibans(text)))

    return MasksOnce(mask)


def _without_ibans(text: str) -> str:
    """Returns a text with each IBAN masked, in any case and grouping; it is known by its checksum."""
    parts, at = list[str](), 0
    for found in IBAN.finditer(text):
        start, length = found.start(), _length_of_iban(found[1])
        if length and start >= at:
            parts += [text[at:start], "<iban>"]
            at = start + length
    return "".join([*parts, text[at:]])


def _length_of_iban(text: str) -> int:
    """Returns how many characters of a text are the longest IBAN that it begins with, 0 where it begins with none.
    Words that happen to have the checksum are none: at least half of an IBAN are digits."""
    for end in range(len(text), SHORTEST_IBAN - 1, -1):
        if text[end : end + 1].isalnum() or not text[end - 1].isalnum():
            continue
        number = re.sub("[^A-Za-z0-9]", "", text[:end])
        if not SHORTEST_IBAN <= len(number) <= LONGEST_IBAN or sum(map(str.isdigit, number)) < len(number) / 2:
            continue
        digits = "".join(str(int(one, 36)) for one in number[4:] + number[:4])  # ISO 7064, MOD 97-10
        if int(digits) % 97 == 1:
            return end
    return 0


def _without_cards(found: re.Match[str]) -> str:
    """Returns digits with all masked that may be the number of a card; others, such as those of a time, as they are."""
    parts, text, at = re.split("([ -])", found[0]), "", 0  # groups of digits, and what is between them
    while at < len(parts):
        end = _end_of_card(parts, at)
        text += "<card>" if end else parts[at]
        at = end or at + 1
    return text


def _end_of_card(parts: Sequence[str], at: int) -> int:
    """Returns where the longest number of a card ends that begins at a part, 0 where none does. The last digit of one
    is a checksum of the others (Luhn's, ISO/IEC 7812-1)."""
    number, end = "", 0
    for place in range(at, len(parts) if parts[at].isdigit() else at, 2):
        number += parts[place]
        if len(number) > LONGEST_CARD:
            break
        digits = [int(digit) for digit in reversed(number)]
        doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
        if len(number) >= SHORTEST_CARD and (sum(digits[::2]) + sum(doubled)) % 10 == 0:
            end = place + 1
    return end


def without_private(mask: Callable[[str], str]) -> Callable[[bytes], str]:
    """Returns what makes of a body JSON in which every text is masked, as an escaped letter could hide what is private;
    of one that is no JSON, a text that is masked."""

    def shortened(text: str) -> str:
        return mask(cut(text, READ_BODY))

    def clean(body: bytes) -> str:
        try:
            return json.dumps(masked_json(json.loads(body), shortened), ensure_ascii=False)
        except (ValueError, RecursionError):
            return shortened(as_text(body))

    return clean


def as_text(body: bytes) -> str:
    return body.decode(errors="replace")


def masked_json(value: Any, mask: Callable[[str], str], path: str = "") -> Any:
    """Returns a value with every text masked; wholly where the names that lead to it (`path`) say that it is a key."""
    if isinstance(value, str):
        text = _masked_within(value, mask, path) if value.startswith(("{", "[")) else mask(value)
        return MASK if text == value and looks_secret(path, value) else text
    if isinstance(value, Mapping):
        return {mask(name): masked_json(one, mask, f"{path}.{name}" if path else name) for name, one in value.items()}
    return [masked_json(one, mask, path) for one in value] if isinstance(value, (list, tuple)) else value


def _masked_within(text: str, mask: Callable[[str], str], path: str) -> str:
    """Returns a text with all masked that it says as JSON, as the arguments of calls do, and then as any text."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if (masked := masked_json(value, mask, path)) != value:
            return mask(json.dumps(masked, ensure_ascii=False))
    return mask(text)


def masked_message(message: Message, mask: Callable[[str], str]) -> Message:
    calls = tuple(_call(call, mask) for call in message.calls)
    return replace(message, text=mask(message.text), thought=mask(message.thought), calls=calls)


def _call(call: ToolCall, mask: Callable[[str], str]) -> ToolCall:
    return replace(call, arguments=masked_json(call.arguments, mask))


def _tool(tool: Tool, mask: Callable[[str], str]) -> Tool:
    parameters = masked_json(tool.parameters, mask)
    return replace(tool, description=mask(tool.description), parameters=parameters)
