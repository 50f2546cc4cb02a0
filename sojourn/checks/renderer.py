"""Checks a renderer, and reports which promises it keeps."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from sojourn.checks.report import Report
from sojourn.protocols import RendererConfig
from sojourn.render.promises import verdicts
from sojourn.render.text import HasCodec


@runtime_checkable
class Unbound(RendererConfig, Protocol):
    """The config of a renderer, as `isinstance` can ask for it."""


def check_renderer(renderer: Any, tokenizer: Any = None) -> Report:
    """Returns the verdicts on a renderer. A config such as `ChatML()` is bound to the tokenizer; a bound one has its
    own.

    Where the format rewrites history, `extend` must return None; a warning says at which tokens. A message that the
    format cannot express (`RenderError`) counts as not offered.
    """
    subject = type(renderer).__name__
    bound: Any = renderer
    if isinstance(renderer, Unbound):
        from sojourn.backends.torch.models.loading import template_of

        bound = renderer.bind(tokenizer, template_of(tokenizer))
    tokenizer = _tokenizer_of(bound) if tokenizer is None else tokenizer
    return Report(subject, tuple(verdicts(bound, tokenizer)))


def _tokenizer_of(renderer: object) -> Any:
    return renderer.codec.tokenizer if isinstance(renderer, HasCodec) else None
