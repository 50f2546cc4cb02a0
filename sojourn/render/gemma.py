"""Gemma's chat format `<start_of_turn>user ... <end_of_turn>` (Gemma 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sojourn.render.hermes import MARKERS
from sojourn.render.marks import Marks
from sojourn.render.text import Codec
from sojourn.render.turns import Turns
from sojourn.types import Role

MARKS = Marks(
    beginning="<bos>",
    start="<start_of_turn>",
    end="<end_of_turn>",
    names={Role.SYSTEM: "user", Role.USER: "user", Role.ASSISTANT: "model", Role.TOOL: "user"},
    merged=(Role.USER, Role.SYSTEM, Role.TOOL),
    between="\n\n",
)


@dataclass(frozen=True, kw_only=True)
class Gemma:
    """Renders messages as turns of "user" and "model".

    There is no system role: all messages that are not the model's are the user's, and consecutive ones share a turn,
    separated by a blank line; so a system message comes before the first user message in its turn. Gemma was not
    trained on a tool format: tools are declared, called and answered in plain text as in `chatml`. Deviations from the
    model's own template: text is not trimmed; `thinking` is ours.
    """

    thinking: bool = False

    def bind(self, tokenizer: Any, template: str = "") -> Turns:
        codec = Codec(tokenizer, (*MARKERS, MARKS.start, MARKS.end))
        codec.token(MARKS.beginning)
        codec.token(MARKS.start)
        return Turns(MARKS, codec, (codec.token(MARKS.end),), self.thinking)
