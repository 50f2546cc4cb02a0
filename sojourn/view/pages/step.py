"""One step of a stage: its groups, with the rewards of their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from starlette.requests import Request

from sojourn.errors import RecordError
from sojourn.record.entry import Entry
from sojourn.record.store import EpisodeStore
from sojourn.view.page import Page, library, render


class Row(NamedTuple):
    """A group: its place in the step, and its episodes in the order in which they were recorded."""

    place: int
    entries: Sequence[Entry]

    @property
    def rewards(self) -> list[float]:
        return [entry.reward for entry in self.entries if entry.reward is not None]

    @property
    def flat(self) -> bool:
        """Whether all were judged alike, so that nothing is learnt by comparing them."""
        return len(self.rewards) > 1 and len(set(self.rewards)) == 1


def index(request: Request) -> Page:
    key, stage, number = (request.path_params[name] for name in ("run", "stage", "step"))
    shown = library(request)
    path = shown.path(key)
    with EpisodeStore(path) as store:
        entries = list(store.query(stage=stage, step=number))
        around = sorted(count.step for count in store.steps() if count.stage == stage)
    if not entries:
        raise RecordError(f"the stage '{stage}' of {key} has no episodes at step {number}: it has {_spans(around)}")
    rows = [Row(place, list(members)) for place, members in groupby(entries, key=lambda entry: entry.place)]
    line = next((line for line in shown.lines(path) if (line.stage, line.step) == (stage, number)), None)
    at = around.index(number)
    return render(
        request, "step.html", run=key, stage=stage, step=number, rows=rows, line=line,
        before=around[at - 1] if at else None, after=around[at + 1] if at + 1 < len(around) else None,
    )  # fmt: skip


def _spans(steps: Sequence[int]) -> str:
    return f"{steps[0]} to {steps[-1]}" if steps else "none yet"
