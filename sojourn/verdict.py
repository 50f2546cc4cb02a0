"""Holds the outcome of one promise of a component."""

from __future__ import annotations

import os
import traceback
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


def raised(error: Exception) -> str:
    """Describes an exception of a component's code, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"raised {type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"
