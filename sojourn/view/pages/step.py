"""One step of a stage: its groups, with the rewards of their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from starlette.requests import Request

from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.view.counts import around, stages
from sojourn.view.page import Page, render, shelf


class Row(NamedTuple):
    """A group: its place in the step, and its episodes in the order in which they were recorded."""

    place: int
    entries: Sequence[EpisodeRow]

    @property
    def rewards(self) -> list[float]:
        return [entry.reward for entry in self.entries if entry.reward is not None]

    @property
    def flat(self) -> bool:
        """Whether all were judged alike, so that nothing is learnt by comparing them."""
        return len(self.rewards) > 1 and len(set(self.rewards)) == 1


def index(request: Request) -> Page:
    key, stage, number = (request.path_params[name] for name in ("run", "stage", "step"))
    shown = shelf(request)
    path = shown.path(key)
    with shown.store(path) as store:
        entries = list(store.query(stage=stage, step=number))
        if not entries:
            held = next((f"{span.first} to {span.last}" for span in stages(store) if span.stage == stage), "none yet")
            raise RecordError(f"the stage '{stage}' of {key} has no episodes at step {number}: it has {held}")
        places = around(store, stage, number)
    rows = [Row(place, list(members)) for place, members in groupby(entries, key=lambda entry: entry.place)]
    line = next((line for line in shown.lines(path) if (line.stage, line.step) == (stage, number)), None)
    return render(
        request, "step.html", run=key, stage=stage, step=number, rows=rows, line=line,
        before=places.before, after=places.after,
        missing=[*shown.lost(path), *store.troubles],
    )  # fmt: skip
