"""The page that compares two evaluations of one run or of two runs, task by task."""

from __future__ import annotations

from starlette.requests import Request

from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.view.counts import EVALUATION_PREFIX, stages
from sojourn.view.evaluation_changes import compare
from sojourn.view.page import Page, render, run_cache


def index(request: Request) -> Page:
    key = request.path_params["run"]
    cache = run_cache(request)
    other = request.query_params.get("other", key) or key
    with cache.store(cache.path(key)) as one, cache.store(cache.path(other)) as two:
        first = _evaluations(one)
        second = first if other == key else _evaluations(two)
        a = request.query_params.get("a") or next(iter(first), "")
        if a and a not in first:
            raise RecordError(f"{key} has no evaluation '{a:.100}' with episodes: it has {', '.join(first) or 'none'}")
        b = asked = request.query_params.get("b") or next(reversed(second), "")
        if b not in second:  # the form keeps this name where another run is chosen
            b = next(reversed(second), "")
        comparison = compare(_episodes(one, a), _episodes(two, b)) if a and b else None
        problems = [*one.troubles, *two.troubles]
        if b and b != asked:
            problems.append(f"{other} has no evaluation '{asked:.100}' with episodes: its newest is shown")
    return render(
        request, "evaluation_changes.html", run=key, other=other, runs=list(cache.paths()), first=first, second=second,
        a=a, b=b, comparison=comparison, problems=problems,
    )  # fmt: skip


def _evaluations(store: EpisodeStore) -> list[str]:
    """Returns the names of the evaluations with episodes, in the order that the run's evaluations.json says."""
    names = [span.stage for span in stages(store) if span.stage.startswith(EVALUATION_PREFIX)]
    recorded = [name.removeprefix(EVALUATION_PREFIX) for name in names]
    try:
        known = [evaluation["name"] for evaluation in RunFolder.read(store.folder).evaluations()]
    except RecordError:
        known = []
    return [name for name in dict.fromkeys([*known, *recorded]) if name in recorded]


def _episodes(store: EpisodeStore, name: str) -> list[EpisodeRow]:
    return list(store.query(stage=EVALUATION_PREFIX + name))
