"""Gemma's format of `<start_of_turn>user ... <end_of_turn>` (Gemma 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sojourn.render.hermes import MARKERS
from sojourn.render.text import Codec
from sojourn.render.turns import Marks, Turns
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
    """Turns between user and model. There is no system role: what is not the model's is the user's, and messages that
    follow each other share a turn, parted by a blank line; so a system message stands before the first user message.

    Gemma was trained on no tool format: tools are declared, called and answered as in `chatml`, in plain text. Differs
    from the model's own template: text is not trimmed; `thinking` is ours.
    """

    thinking: bool = False

    def bind(self, tokenizer: Any, template: str = "") -> Turns:
        codec = Codec(tokenizer, (*MARKERS, MARKS.start, MARKS.end))
        codec.token(MARKS.beginning)
        codec.token(MARKS.start)
        return Turns(MARKS, codec, (codec.token(MARKS.end),), self.thinking)
