"""Hidden thought: what a seat thinks before it speaks, which the other seat never sees."""

from __future__ import annotations

import re
from typing import NamedTuple

from sojourn.types import Message

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
WHOLE = re.compile(r"\s*<think>(.*?)</think>\s*<answer>(.*?)</answer>\s*", re.DOTALL)
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class Spoken(NamedTuple):
    """Holds what the other seat is shown, and whether the message had the form that is asked for."""

    answer: str
    well_formed: bool


def spoken(message: Message) -> Spoken:
    """Reads a message of a thought and an answer: `<think>...</think> <answer>...</answer>`, each tag once and neither
    part empty, or a thought that the chat format tells apart, followed by a text without these tags.

    Of a message of another form, the answer is what stands between its answer tags, and all of it where there are none,
    as in the authors' code.
    """
    text = message.text
    if message.thought.strip():
        return Spoken(text.strip(), bool(text.strip()) and not any(tag in text for tag in TAGS))
    whole = WHOLE.fullmatch(text)
    if whole and all(text.count(tag) == 1 for tag in TAGS):
        thought, answer = (part.strip() for part in whole.groups())
        return Spoken(answer, bool(thought and answer))
    inner = ANSWER.search(text)
    return Spoken((inner[1] if inner else text).strip(), False)
