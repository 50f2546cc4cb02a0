"""How many tokens were sampled for turns, those of searches included."""

from __future__ import annotations

from collections.abc import Iterable

from sojourn.types import Turn

# In the info of a turn: what the copies took that were tried before it, and 1 where its sample is of one of them.
SEARCH_TOKENS, SEARCH_TURNS, PLANNED = "search_tokens", "search_turns", "planned"


def spent_tokens(turns: Iterable[Turn]) -> int:
    """Returns how many tokens were sampled to find the turns: their own, and those of actions that were only tried."""
    return sum(
        int(turn.info.get(SEARCH_TOKENS, 0.0)) + (0 if turn.info.get(PLANNED) else len(turn.sample.tokens))
        for turn in turns
    )
