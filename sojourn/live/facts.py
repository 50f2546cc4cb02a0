"""Facts of a live service, as its store keeps them: sessions, releases, what became of them, requests, removals."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SERVING = "serving"  # the kind of event of a release that begins to serve


class LiveSession(NamedTuple):
    """Describes a session: who had it (a name that the service was given), whether it may be trained on, and the number
    of the release that answered. `ended` is None while it goes on, and `step` until training has taken it."""

    key: str
    person: str
    consent: bool
    release: int
    opened: float
    touched: float
    ended: float | None
    step: int | None


class Release(NamedTuple):
    """Describes weights that may serve, with what their evaluation said."""

    number: int
    step: int
    folder: Path
    panel: Mapping[str, float]


class Candidate(NamedTuple):
    """Names weights that were judged after an evaluation, `name@step`; with the reason if they were refused, and the
    release from whose weights the learner continued then, if it did."""

    evaluation: str
    refused: str = ""
    back_to: int | None = None


class Event(NamedTuple):
    """Says what became of a release, and why."""

    at: float
    kind: str
    release: int | None
    reason: str


class Traffic(NamedTuple):
    """Names requests that ended in the same minute (since 1970) and in the same way: by the release that answered (-1:
    it is not known), their API, and their HTTP status (499: the client left)."""

    minute: int
    release: int
    api: str
    status: str

    @property
    def left(self) -> bool:
        return self.status == "499"

    @property
    def failed(self) -> bool:
        return self.status >= "400" and not self.left


class PendingRemoval(NamedTuple):
    """Names a session that its person took back after training had taken it, by `digest_of` its key, and the step whose
    records still have it."""

    digest: str
    stage: str
    step: int


def digest_of(key: str) -> str:
    """Returns what stands for the key of a session that is gone."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
