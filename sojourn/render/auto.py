"""The renderer that fits the model's own chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sojourn.config.lookup import find
from sojourn.protocols import Renderer, RendererConfig


@dataclass(frozen=True, kw_only=True)
class Auto:
    """ChatML or Gemma where the model's template is one of them, else the generic fallback over the template itself.

    `thinking` opens every turn of the assistant with a thinking section (ChatML).
    """

    thinking: bool = False

    def bind(self, tokenizer: Any, template: str) -> Renderer:
        """Returns the renderer for a format's name, as the backend read it off the tokenizer."""
        cls = find("renderer", template)
        chosen: RendererConfig = cls(thinking=True) if self.thinking else cls()
        return chosen.bind(tokenizer, template)
