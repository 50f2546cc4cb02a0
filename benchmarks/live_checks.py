"""The checks of `live.py`: nothing was served by unpublished weights, and nothing is kept of whom did not agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from live_population import Talked

from sojourn.live.facts import SERVING, LiveSession
from sojourn.live.gate import CANARY, OFFERED, REFUSED, ROLLED_BACK
from sojourn.live.store import LiveStore
from sojourn.serving.opening import open_model, release_of
from sojourn.types import Ending, Prompt, Trajectory

EACH = 3  # sessions of each release whose probabilities are computed again
TOLERANCE = 1e-3  # nats: float32 in batches of other sizes


class Published(NamedTuple):
    """The time in which new sessions may be answered by a release."""

    release: int
    begins: float
    ends: float


def published(store: LiveStore) -> list[Published]:
    """Returns when each release may have answered new sessions, by the decisions that the service wrote down."""
    offered = {event.release for event in store.events() if event.kind == OFFERED}
    begun, found = dict[int, float](), list[Published]()
    for event in store.events():
        if event.release is None or event.release not in offered:
            continue
        if event.kind in (CANARY, SERVING):
            begun.setdefault(event.release, event.at)
        elif event.kind == ROLLED_BACK and event.release in begun:
            found.append(Published(event.release, begun.pop(event.release), event.at))
    return [*found, *(Published(number, at, float("inf")) for number, at in begun.items())]


def unpublished(store: LiveStore, sessions: Sequence[LiveSession]) -> list[str]:
    """Returns the sessions that a release answered which was not published when they began. A session begins with its
    first reply or its consent, which the store keeps a moment later, so that the end of the time has a second more."""
    times = published(store)
    return [
        one.key
        for one in sessions
        if not any(t.release == one.release and t.begins <= one.opened <= t.ends + 1.0 for t in times)
    ]


async def other_weights(run: Path, store: LiveStore, sessions: Sequence[LiveSession]) -> tuple[int, float]:
    """Returns how many replies have other probabilities than the weights of their release give, and the largest
    difference in nats, of a few sessions of each release."""
    wrong, largest = 0, 0.0
    releases = {one.number: one for one in store.releases()}
    for number in sorted({one.release for one in sessions}):
        served = open_model(release_of(run, releases[number].folder, f"release {number}"))
        for one in [s for s in sessions if s.release == number][:EACH]:
            whole = Trajectory("agent", store.turns(one.key), Ending.DONE)
            for at, turn in enumerate(whole.turns):
                scored = await served.engine.score(Prompt(np.concatenate([whole.prompt(at), turn.sample.tokens])))
                difference = float(np.abs(scored[-len(turn.sample.tokens) :] - turn.sample.logprobs).max())
                wrong, largest = wrong + (difference > TOLERANCE), max(largest, difference)
        await served.engine.close()
    return wrong, largest


async def audit(run: Path, talked: Sequence[Talked]) -> dict[str, Any]:
    """Returns what became of the releases of a run, and the faults that were found."""
    store = LiveStore(run / "live")
    sessions = store.sessions(1_000_000)
    agreed = {one.key for one in talked if one.agreed}
    kept_without = sum(one.key not in agreed for one in sessions)
    not_published = unpublished(store, sessions)
    wrong, largest = await other_weights(run, store, sessions)
    events = store.events()
    bad = [event.release for event in events if event.kind == ROLLED_BACK]
    answered = {number: sum(one.release == number for one in sessions) for number in {*bad}}
    served = {event.release for event in events if event.kind == SERVING}
    store.close()
    return {
        "sessions_kept": len(sessions),
        "not_kept": len(talked) - len(agreed),
        "trained_on": sum(one.step is not None for one in sessions),
        "offered": sum(event.kind == OFFERED for event in events),
        "refused": sum(event.kind == REFUSED for event in events),
        "rolled_back": len(bad),
        "releases_served": len(served),
        "bad_served": len(served - {0}),
        "tried_sessions": sum(answered.values()),
        "most_sessions_of_a_bad_release": max(answered.values(), default=0),
        "faults": len(not_published) + wrong + kept_without,
        "unpublished": not_published[:10],
        "other_weights": wrong,
        "largest_difference_nats": largest,
        "kept_without_consent": kept_without,
    }
