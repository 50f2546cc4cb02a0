"""ChatML, the chat format `<|im_start|>role ... <|im_end|>` of SmolLM2, Qwen and many others, and of our `tiny`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sojourn.render.hermes import MARKERS
from sojourn.render.marks import Marks
from sojourn.render.text import Codec
from sojourn.render.turns import Turns
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
    """Renders messages as ChatML. `thinking` starts the assistant's turn with `<think>`: the model samples a thought,
    then its answer.

    Deviations from the models' own templates: no system message is inserted where there is none (SmolLM2's template
    inserts "You are a helpful AI assistant named SmolLM ..."); earlier thoughts are kept (Qwen3's template removes
    them, which would change sampled tokens); tools are declared in our words (see `hermes`). Tool answers are
    `<tool_response>` in a user turn; consecutive ones share a turn.
    """

    thinking: bool = False

    def bind(self, tokenizer: Any, template: str = "") -> Turns:
        codec = Codec(tokenizer, MARKERS)
        codec.token(MARKS.start)
        return Turns(MARKS, codec, (codec.token(MARKS.end),), self.thinking)
