"""Chooses the renderer that fits the model's chat template."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sojourn.config.lookup import find
from sojourn.errors import RenderError
from sojourn.protocols import Renderer, RendererConfig
from sojourn.render import learned
from sojourn.render.program import CUTS, Program
from sojourn.render.promises import AFRESH, conversations, verdicts
from sojourn.render.template import Template, Templated
from sojourn.render.text import Codec
from sojourn.render.turns import Turns
from sojourn.types import Message, Role
from sojourn.verdict import Outcome, Verdict

NEEDED = {
    *(AFRESH + name for name in ("text", "system", "unicode and blanks", "empty messages", "typed control tokens")),
    AFRESH + "tool calls",
    "a reply reads back: text",
    "a reply ends at its stop token",
    "typed text gives no control token",
}  # all other promises may be out of a format's reach, but not broken
THOUGHTS = AFRESH + "thoughts"
NO_OWN_TOOLS = (
    "tools are declared and called in Sojourn's words, as the template declares none or does not write the arguments "
    "of calls as JSON"
)
REWRITES = "it changes what came before when a conversation goes on, so that such a turn begins a new context"


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Renders by the model's own chat template wherever it is proven to be exact, and else in the format `chatml` or
    `gemma` whose tokens the model has; the renderer's `note` says which, and why.

    `own_template = false` chooses by the tokens alone, as runs did that were recorded before there was a choice.
    `thinking` lets the model think before it answers.
    """

    thinking: bool = False
    own_template: bool = True

    def bind(self, tokenizer: Any, template: str) -> Renderer:
        """Returns the renderer; `template` is the format whose tokens the backend found in the tokenizer."""
        if not self.own_template or tokenizer is None:
            return self._format(tokenizer, template)
        if not tokenizer.chat_template:
            bound = self._format(tokenizer, template)
            return _noted(bound, f"chat format: {template}, because the model has no chat template of its own")
        bound = self._format(tokenizer, template) if template != "template" else None
        if bound is not None and _agrees(bound, tokenizer, self.thinking):
            return bound
        own, broken = self._own(tokenizer)
        if own is not None:
            return own
        if bound is not None:
            return _noted(
                bound, f"chat format: {template}, because the model's own chat template is not exact: {broken}"
            )
        raise RenderError(
            f"the model's own chat template is not exact ({broken}), and its tokenizer has the tokens of no other "
            "format: expected a template that keeps what was sampled: name a renderer, or use another model"
        )

    def _format(self, tokenizer: Any, template: str) -> Renderer:
        cls = find("renderer", template)
        chosen: RendererConfig = cls(thinking=True) if self.thinking else cls()
        return chosen.bind(tokenizer, template)

    def _own(self, tokenizer: Any) -> tuple[Templated | None, str]:
        """Returns the renderer of the model's own template, or None and which promise it breaks."""
        broken = ""
        for tools in ("auto", "text"):
            try:
                bound = Template(thinking=self.thinking, tools=tools).bind(tokenizer)
                judged = list(verdicts(bound, tokenizer))
                failed = broken_promise(bound, judged, self.thinking) or _differs(bound, tokenizer, self.thinking)
            except RenderError as error:
                failed = str(error)
            else:
                if not failed:
                    return replace(bound, note=_note(bound, judged)), ""
            broken = broken or failed
        return None, broken


def broken_promise(renderer: Renderer, judged: list[Verdict], thinking: bool) -> str:
    """Returns the first promise that keeps a renderer from being used, with what happened; empty where none does."""
    needed = NEEDED | ({THOUGHTS} if thinking else set())
    for verdict in judged:
        missing = verdict.outcome is Outcome.NOT_OFFERED and verdict.promise in needed
        if missing and verdict.promise == THOUGHTS:
            return "it writes no thoughts, which thinking = true asks for"
        if missing or verdict.outcome is Outcome.FAILED:
            return f"'{verdict.promise}' fails: {verdict.detail[:300]}"
    return ""


def _note(bound: Templated, judged: list[Verdict]) -> str:
    notes = [NO_OWN_TOOLS] if bound.calls is None else []
    if any(verdict.outcome is Outcome.WARNED for verdict in judged):
        notes.append(REWRITES)
    return "; ".join(["chat format: the model's own template", *notes])


def _noted(bound: Renderer, note: str) -> Renderer:
    return replace(bound, note=note) if isinstance(bound, Turns | Templated) else bound


def _agrees(bound: Renderer, tokenizer: Any, thinking: bool) -> bool:
    """Returns whether a format writes what the model's own template does, which then has no tools of its own."""
    try:
        program = Program(Codec(tokenizer), thinking)
        return not learned.declares_tools(program) and not _differs(bound, tokenizer, thinking)
    except RenderError:
        return False


def _plain_conversations() -> Iterator[list[Message]]:
    """Yields conversations that every template takes, without what templates trim or rewrite."""
    for conversation in conversations(()):
        if conversation.name in ("text", "system"):
            yield list(conversation.opening)
    yield [Message(Role.USER, "Where?"), Message(Role.ASSISTANT, "go north"), Message(Role.USER, "A wall.")]


def _differs(bound: Renderer, tokenizer: Any, thinking: bool) -> str:
    """Returns where a renderer's tokens are not those that the tokenizer gives for its template; empty where they are
    the same."""
    for messages in _plain_conversations():
        accepted = bound.accepted.convert(messages) if isinstance(bound, Templated) else messages
        text = Program(Codec(tokenizer), thinking).render(accepted, CUTS[0], prompt=True).replace(CUTS[0], "")
        theirs = tokenizer.encode(text, add_special_tokens=False, verbose=False)
        ours = bound.open(messages).tokens
        if not np.array_equal(ours, theirs):
            return (
                f"'the tokens are those of the template' fails: the conversation {[m.text for m in messages]} is "
                f"{tokenizer.decode(ours.tolist())!r}, by the template {text!r}"
            )
    return ""
