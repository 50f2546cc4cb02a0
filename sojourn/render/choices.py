"""The tokens of the choices that a world lists, kept for the turns and plays that list the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from sojourn.errors import WorldError
from sojourn.protocols import Renderer
from sojourn.types import Message, Role

MOST = 10_000  # choices of an observation: to encode them takes a third of a second, and no other episode goes on
LONGEST = 10_000  # characters of a choice
WHOLE = 1_000_000  # characters of all choices of an observation
KEPT = 16  # lists of choices

Tokens = tuple[tuple[int, ...], ...]


def tokens_of(renderer: Renderer, choices: Sequence[str]) -> Tokens:
    """Returns the tokens of each choice as the agent would sample them; raises `WorldError` where they are too many."""
    if len(choices) > MOST:
        raise WorldError(
            f"the world lists {len(choices)} choices: expected at most {MOST}: list fewer, or set agent.choices = false"
        )
    if wrong := [choice for choice in choices if not isinstance(choice, str)]:
        raise WorldError(f"the world lists the choice {wrong[0]!r}: expected text, as the agent would say it")
    lengths = [len(choice) for choice in choices]
    if max(lengths) > LONGEST or sum(lengths) > WHOLE:
        raise WorldError(
            f"the world lists choices of {sum(lengths)} characters, the longest of {max(lengths)}: expected at most "
            f"{WHOLE} in all and {LONGEST} in one: list fewer or shorter ones, or set agent.choices = false"
        )
    return _encoded(_Same(renderer), tuple(choices))


class _Same:
    """A renderer as a key, equal to itself alone."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer

    def __hash__(self) -> int:
        return id(self.renderer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.renderer is self.renderer


@lru_cache(KEPT)
def _encoded(same: _Same, choices: tuple[str, ...]) -> Tokens:
    return tuple(tuple(same.renderer.encode_reply(Message(Role.ASSISTANT, text))) for text in choices)
