"""Turn advantages read from a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.credit.process import STREAM
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class Archer:
    """`coef` times the number that a stream gives for each turn, such as an utterance-level advantage, as the advantage
    of all tokens of the turn (ArCHer: Zhou et al. 2024, arXiv:2402.19446), without sampling new utterances.

    With the stream `utterance_advantage` this is the paper's actor, without its optional token-level baseline. The
    actor learns from the utterances that were played, where the paper samples new ones at states of the replay buffer
    and lets the critic judge them. The paper sums over the tokens of an utterance, so that long utterances weigh more:
    use `aggregate.by = "constant"`.
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
                for t, turns in zip(group.trajectories, stream, strict=True)
            ]
            for group, stream in zip(groups, streams[self.stream], strict=True)
        ]
