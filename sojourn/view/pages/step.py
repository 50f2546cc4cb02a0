"""The page of a step: its groups, with the rewards of their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from starlette.requests import Request

from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.view.counts import neighbour_steps, stages
from sojourn.view.page import Page, render, run_cache


class GroupRow(NamedTuple):
    """A group with its place in the step and its episodes, in the order in which they were recorded."""

    place: int
    episodes: Sequence[EpisodeRow]

    @property
    def rewards(self) -> list[float]:
        return [episode.reward for episode in self.episodes if episode.reward is not None]

    @property
    def all_rewards_equal(self) -> bool:
        """Returns whether all rewards are equal, so that group-relative advantages are zero."""
        return len(self.rewards) > 1 and len(set(self.rewards)) == 1


def index(request: Request) -> Page:
    key, stage, number = (request.path_params[name] for name in ("run", "stage", "step"))
    cache = run_cache(request)
    path = cache.path(key)
    with cache.store(path) as store:
        entries = list(store.query(stage=stage, step=number))
        if not entries:
            spans = (f"steps {span.first} to {span.last}" for span in stages(store) if span.stage == stage)
            raise RecordError(
                f"the stage '{stage}' of {key} has no episodes at step {number}: it has {next(spans, 'none')}"
            )
        neighbours = neighbour_steps(store, stage, number)
    rows = [GroupRow(place, list(members)) for place, members in groupby(entries, key=lambda entry: entry.place)]
    line = next((line for line in cache.lines(path) if (line.stage, line.step) == (stage, number)), None)
    return render(
        request, "step.html", run=key, stage=stage, step=number, rows=rows, line=line,
        before=neighbours.before, after=neighbours.after,
        problems=[*cache.metrics_problems(path), *store.troubles],
    )  # fmt: skip
