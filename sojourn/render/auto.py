"""Chooses the renderer that fits the model's chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sojourn.config.lookup import find
from sojourn.protocols import Renderer, RendererConfig


@dataclass(frozen=True, kw_only=True)
class Auto:
    """The renderer `chatml` or `gemma` where the model's template is one of them, else `template`, which runs
    the model's own.

    `thinking` starts every assistant turn with a thinking section (ChatML).
    """

    thinking: bool = False

    def bind(self, tokenizer: Any, template: str) -> Renderer:
        """Returns the renderer of the format whose name the backend found in the tokenizer."""
        cls = find("renderer", template)
        chosen: RendererConfig = cls(thinking=True) if self.thinking else cls()
        return chosen.bind(tokenizer, template)
