"""Checks a renderer, and reports which promises it keeps."""

from __future__ import annotations

from typing import Any

from sojourn.checks.report import Report
from sojourn.render.promises import verdicts


def check_renderer(renderer: Any, tokenizer: Any = None) -> Report:
    """Returns the verdicts on a renderer. A config such as `ChatML()` is bound to the tokenizer; a bound one has its
    own.

    Where the format rewrites history, `extend` must return None; a warning says at which tokens. A message that the
    format cannot express (`RenderError`) counts as not offered.
    """
    subject = type(renderer).__name__
    if hasattr(renderer, "bind"):
        renderer = renderer.bind(tokenizer)
    tokenizer = tokenizer or getattr(getattr(renderer, "codec", None), "tokenizer", None)
    return Report(subject, tuple(verdicts(renderer, tokenizer)))
