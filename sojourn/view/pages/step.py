"""The page of a step: its groups, with the rewards of their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from starlette.requests import Request

from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.origins import count_origins, reused_in
from sojourn.record.episodes.store import EpisodeStore
from sojourn.terminal.find import group_episodes
from sojourn.view.counts import neighbour_steps, stages
from sojourn.view.page import Page, render, run_cache


class GroupRow(NamedTuple):
    """A group with its origin, the step and the place where it is recorded, and its episodes in the order of recording;
    `age` is how many steps ago that was."""

    origin: str | None
    step: int
    place: int
    episodes: Sequence[EpisodeRow]
    age: int = 0

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
        rows = group_rows(store, stage, number)
        if not rows:
            spans = (f"steps {span.first} to {span.last}" for span in stages(store) if span.stage == stage)
            raise RecordError(
                f"the stage '{stage}' of {key} has no episodes at step {number}: it has {next(spans, 'none')}"
            )
        neighbours = neighbour_steps(store, stage, number)
    line = next((line for line in cache.lines(path) if (line.stage, line.step) == (stage, number)), None)
    return render(
        request, "step.html", run=key, stage=stage, step=number, rows=rows, line=line,
        origins=count_origins(row.origin for row in rows),
        before=neighbours.before, after=neighbours.after,
        problems=[*cache.metrics_problems(path), *store.troubles],
    )  # fmt: skip


def group_rows(store: EpisodeStore, stage: str, step: int) -> list[GroupRow]:
    """Returns the groups that a step recorded, then those that it trained again."""
    entries = store.query(stage=stage, step=step)
    by_place = [(place, list(members)) for place, members in groupby(entries, key=lambda entry: entry.place)]
    recorded = [GroupRow(members[0].origin, step, place, members) for place, members in by_place]
    again = [
        GroupRow(one.origin, one.of_step, one.of_place, members, one.age)
        for one in reused_in(store, stage, step)
        if (members := group_episodes(store, stage, one.of_step, one.of_place))
    ]
    return recorded + again
