"""An agent that plays to the end several times in copies, and does what most of these plays did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from sojourn.config.fields import Range
from sojourn.searchers.ahead import Ahead, Position, first_action
from sojourn.searchers.search import Search
from sojourn.types import Turn


@dataclass(frozen=True, kw_only=True)
class SelfConsistency(Search):
    """Plays on to the end `n` times, and follows one of those plays that agree with most others (self-consistency: Wang
    et al. 2022, arXiv:2203.11171, by accounts: the answer that most sampled paths come to).

    By `vote`, two plays agree where they end with the same "answer", which is the text of the last action, or where
    they begin with the same "action"; then the vote is repeated each turn. Of the plays that agree, the one whose
    tokens are likeliest in the mean is followed. No reward is asked.
    """

    n: Annotated[int, Range(1)] = 8
    vote: Literal["answer", "action"] = "answer"

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        if self.vote == "action":
            tried = await ahead.expand(ahead.root, self.n)
            for one in tried:
                ahead.consider(one.text, one.times / self.n, one.times)
            return ahead.plan(tried[0].position)[:1] if tried else []
        ends = [end async for some in ahead.play_within(self.n) for end in some]
        answers = [self._answer(ahead, end) for end in ends]
        votes = Counter(answers)
        for end, answer in zip(ends, answers, strict=True):
            ahead.consider(ahead.first_text(end), votes[answer] / len(ends))
        agreeing = [end for end, answer in zip(ends, answers, strict=True) if answer == votes.most_common(1)[0][0]]
        return ahead.plan(max(agreeing, key=ahead.likelihood, default=None))

    def _answer(self, ahead: Ahead, end: Position) -> str:
        turns = ahead.new_turns(end, ahead.root, ahead.name)
        return first_action(turns[-1:])
