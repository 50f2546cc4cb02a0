"""Holds the outcome of one promise of a component."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    PASSED = "passed"
    WARNED = "warned"  # the promise is kept, but something is worth knowing
    FAILED = "failed"
    NOT_OFFERED = "not offered"  # the promise is about an optional ability that is missing
    NOT_JUDGED = "not judged"  # a promise that this one needs is broken


@dataclass(frozen=True)
class Verdict:
    """The outcome of one promise; `detail` says what was tried, what happened, and what was expected."""

    promise: str
    outcome: Outcome
    detail: str = ""
