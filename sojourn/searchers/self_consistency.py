"""An agent that plays to the end several times in copies, and does what most of these plays did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from sojourn.config.fields import Range
from sojourn.searchers.ahead import Ahead, first_action
from sojourn.searchers.search import Search
from sojourn.types import Turn


@dataclass(frozen=True, kw_only=True)
class SelfConsistency(Search):
    """Plays on to the end `n` times, and follows one of those plays that agree with most others (self-consistency: Wang
    et al. 2022, arXiv:2203.11171, by accounts: the answer that most sampled paths come to).

    By `vote`, two plays agree where they end with the same "answer", which is the text of the last action, or where
    they begin with the same "action"; then the vote is repeated each turn. An action that cannot be read, or that the
    world refuses, has no vote unless all are such. Of the plays that agree, the one whose tokens are likeliest in the
    mean is followed. No reward is asked.
    """

    n: Annotated[int, Range(1)] = 8
    vote: Literal["answer", "action"] = "answer"

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        if self.vote == "action":
            tried = await ahead.expand(ahead.root, self.n)
            for one in tried:
                ahead.consider(one.text, one.times / self.n, one.times)
            voters = _voters([ahead.new_turns(one.position, ahead.root, ahead.name)[:1] for one in tried])
            voting = [one for one, votes in zip(tried, voters, strict=True) if votes]
            return ahead.plan(voting[0].position)[:1] if voting else []
        ends = [end async for some in ahead.play_within(self.n) for end in some]
        lasts = [ahead.new_turns(end, ahead.root, ahead.name)[-1:] for end in ends]
        answers = [first_action(turns) if votes else None for turns, votes in zip(lasts, _voters(lasts), strict=True)]
        counts = Counter(answer for answer in answers if answer is not None)
        for end, answer in zip(ends, answers, strict=True):
            ahead.consider(ahead.first_text(end), 0.0 if answer is None else counts[answer] / len(ends))
        winner = counts.most_common(1)[0][0] if counts else ""
        agreeing = [end for end, answer in zip(ends, answers, strict=True) if answer == winner]
        return ahead.plan(max(agreeing, key=ahead.likelihood, default=None))


def _voters(turns: Sequence[Sequence[Turn]]) -> list[bool]:
    """Returns which plays have a vote, by the turn of each that says it, if it has one: those whose action could be
    read and was not refused, or all where there are none."""
    readable = [any(one.message is not None and not one.info.get("malformed") for one in some) for some in turns]
    return readable if any(readable) else [True] * len(turns)
