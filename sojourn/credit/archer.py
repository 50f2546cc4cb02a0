"""What a stream says of each turn, as its advantage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.credit.process import STREAM
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class Archer:
    """The number that the stream `by` gives for each turn, for all tokens of the turn (ArCHer: Zhou et al. 2024,
    arXiv:2402.19446), without drawing utterances anew; `coef` scales it.

    With the stream `utterance_advantage` this is the paper's actor, without its optional baseline of tokens. The actor
    learns from the utterances that were played, where the paper draws new ones at remembered states and lets the critic
    judge them. It adds up the tokens of an utterance, so long ones weigh more: `aggregate.by = "constant"`.
    """

    stream: Annotated[str, STREAM] = "utterance_advantage"
    coef: float = 1.0

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({self.stream})

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        return [
            [
                Credit.per_turn(t, [self.coef * float(turn.sum()) for turn in turns])
                for t, turns in zip(group.trajectories, known, strict=True)
            ]
            for group, known in zip(groups, streams[self.stream], strict=True)
        ]
