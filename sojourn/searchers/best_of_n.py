"""An agent that plays to the end several times in copies, and follows the best of these plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from sojourn.config.fields import Range
from sojourn.searchers.ahead import Ahead
from sojourn.searchers.search import JudgedSearch
from sojourn.types import Turn


@dataclass(frozen=True, kw_only=True)
class BestOfN(JudgedSearch):
    """Plays on to the end `n` times, has `reward` judge the plays, and follows the best (Cobbe et al. 2021,
    arXiv:2110.14168, section 4.2: a verifier ranks samples; there of answers, here of plays).

    With the world's own reward, `native`, this is the success of any of n plays; with a reward that does not see the
    truth, such as a judge, it is what that judge can make of them. `commit` says how much is followed: the whole
    "play", as long as the world shows what it showed in the copy, or one "turn", after which `n` more plays are tried.
    Where several seats act, it is one turn.

    Plays are tried `at_once` at a time (0: all together, which a sampler that batches does in the least time); once one
    is worth at least `enough`, no more are.
    """

    n: Annotated[int, Range(1)] = 8
    commit: Literal["play", "turn"] = "play"
    at_once: Annotated[int, Range(0)] = 0
    enough: float = 1.0

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        best, most = None, -float("inf")
        async for ends in ahead.play_within(self.n, self.at_once):
            for end in ends:
                worth = (await ahead.worth(end))[ahead.name]
                ahead.consider(ahead.first_text(end), worth)
                if worth > most:
                    best, most = end, worth
            if most >= self.enough:
                break
        plan = ahead.plan(best)
        return plan if self.commit == "play" else plan[:1]
