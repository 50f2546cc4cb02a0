"""ChatML, the format of `<|im_start|>role ... <|im_end|>`: SmolLM2, Qwen and many others, and our `tiny`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sojourn.render.hermes import MARKERS
from sojourn.render.text import Codec
from sojourn.render.turns import Marks, Turns
from sojourn.types import Role

MARKS = Marks(
    beginning="",
    start="<|im_start|>",
    end="<|im_end|>",
    names={Role.SYSTEM: "system", Role.USER: "user", Role.ASSISTANT: "assistant", Role.TOOL: "user"},
    merged=(Role.TOOL,),
    between="\n",
)


@dataclass(frozen=True, kw_only=True)
class ChatML:
    """Turns in ChatML. `thinking` opens the assistant's turn with `<think>`: it samples a thought, then its answer.

    Differs from the templates that models bring: no system message is made up where there is none (SmolLM2's template
    inserts "You are a helpful AI assistant named SmolLM ..."); earlier thoughts are kept (Qwen3's template strips them,
    which would rewrite what was sampled); tools are declared in our words (see `hermes`). Tool answers are
    `<tool_response>` in a user turn, those that follow each other in the same turn.
    """

    thinking: bool = False

    def bind(self, tokenizer: Any, template: str = "") -> Turns:
        codec = Codec(tokenizer, MARKERS)
        codec.token(MARKS.start)
        return Turns(MARKS, codec, (codec.token(MARKS.end),), self.thinking)
