"""The renderer that fits the model's own chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sojourn.config.registry import find


@dataclass(frozen=True, kw_only=True)
class Auto:
    """ChatML or Gemma where the model's template is one of them, else the generic fallback over the template itself.

    `thinking` opens every turn of the assistant with a thinking section (ChatML).
    """

    thinking: bool = False

    def pick(self, template: str) -> Any:
        """The renderer for a template's name, as the backend read it off the tokenizer."""
        cls = find("renderer", template)
        return cls(thinking=True) if self.thinking else cls()
