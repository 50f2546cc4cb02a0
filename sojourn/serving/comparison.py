"""Compares what people say of two releases, and says whether that is enough to decide between them."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sojourn.live.gate import Gate

TOO_FEW = "too few sessions to tell"


class Verdict(enum.Enum):
    """Says what is known of a release beside another: nothing yet, that it is worse, that it is not, or that it cannot
    be known, as the other has too few sessions."""

    WAIT = enum.auto()
    WORSE = enum.auto()
    NOT_WORSE = enum.auto()
    UNKNOWN = enum.auto()


class Compared(NamedTuple):
    """A verdict with the numbers behind it, in words."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class Scores:
    """The feedback of the sessions of two releases. `earlier` says that those of the other release began before the
    time in which the two are compared, as it had none in that time."""

    new: Sequence[float]
    other: Sequence[float]
    earlier: bool = False

    @property
    def drop(self) -> float:
        return statistics.fmean(self.other) - statistics.fmean(self.new)

    @property
    def error(self) -> float:
        """Returns the standard error of the drop, with one variance for both releases: that of two or three sessions
        which happen to agree would be 0."""
        both = (self.new, self.other)
        variance = sum((len(one) - 1) * statistics.variance(one) for one in both) / sum(len(one) - 1 for one in both)
        return (variance * sum(1 / len(one) for one in both)) ** 0.5

    @property
    def described(self) -> str:
        if self.too_few:
            return f"{len(self.new)} sessions with feedback, and {len(self.other)} of the other release"
        return (
            f"feedback {statistics.fmean(self.new):+.3f} in {len(self.new)} sessions, "
            f"{statistics.fmean(self.other):+.3f} in {len(self.other)} of the other release"
        )

    @property
    def too_few(self) -> bool:
        """Returns whether one of the two has no variance yet."""
        return len(self.new) < 2 or len(self.other) < 2


def compare(gate: Gate, count: int, scores: Scores) -> Compared:
    """Says whether the new release is worse. It is where its feedback is lower by more than `tolerance` once both have
    `count` sessions; and before that where it is sure: where the difference is larger than twice its standard error,
    too, and than twice `tolerance`.

    A release whose predecessor answers nobody (`canary_share = 0`) is compared with the last sessions of that before,
    of which half of `count` are enough. What cannot be decided when the new release has `limit_sessions` is unknown.
    """
    said = scores.described
    if not scores.too_few and scores.drop > max(2 * scores.error, 2 * gate.tolerance):
        return Compared(Verdict.WORSE, said)
    alone = gate.canary_share == 0
    needed = (count + 1) // 2 if alone else count
    if len(scores.new) >= count and len(scores.other) >= needed and (alone or not scores.earlier):
        worse = scores.drop > gate.tolerance
        return Compared(Verdict.WORSE if worse else Verdict.NOT_WORSE, said)
    if len(scores.new) >= (count if alone else gate.limit_sessions):
        return Compared(Verdict.UNKNOWN, f"{TOO_FEW}: {said}")
    return Compared(Verdict.WAIT, said)
