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

CARD, SHORTEST_CARD, LONGEST_CARD = "<card>", 13, 19  # digits
PERSONAL = [  # what is masked before the model reads it: addresses of e-mail, numbers of cards, of accounts, of phones
    (re.compile(r"[\w.+-]{1,64}@[\w-]+\.[\w.-]+\w"), "<email>"),
    (re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}\b"), "<iban>"),
    (re.compile(r"\b\d(?:[ -]?\d){12,}\b"), CARD),
    (re.compile(r"(?<!\w)\+\d[\d ()/-]{7,}\d"), "<phone>"),
]


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
        text = without_keys(text)
        for pattern, name in PERSONAL:
            text = pattern.sub(_without_cards if name == CARD else name, text)
        return text

    return MasksOnce(mask)


def _without_cards(found: re.Match[str]) -> str:
    """Returns digits with all masked that may be the number of a card; others, such as those of a time, as they are."""
    parts, text, at = re.split("([ -])", found[0]), "", 0  # groups of digits, and what is between them
    while at < len(parts):
        end = _end_of_card(parts, at)
        text += CARD if end else parts[at]
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
