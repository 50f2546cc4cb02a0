"""The same panel of tasks under two evaluations, of one run or of two."""

from __future__ import annotations

from starlette.requests import Request

from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.view.counts import PREFIX, stages
from sojourn.view.page import Page, render, shelf
from sojourn.view.panels import compare


def index(request: Request) -> Page:
    key = request.path_params["run"]
    shown = shelf(request)
    other = request.query_params.get("other", key) or key
    with shown.store(shown.path(key)) as one, shown.store(shown.path(other)) as two:
        first = _evaluations(one)
        second = first if other == key else _evaluations(two)
        a = request.query_params.get("a") or next(iter(first), "")
        b = request.query_params.get("b") or next(reversed(second), "")
        found = compare(_played(one, a), _played(two, b)) if a and b else None
        missing = [*one.troubles, *two.troubles]
    return render(
        request, "panels.html", run=key, other=other, runs=list(shown.paths()), first=first, second=second,
        a=a, b=b, found=found, missing=missing,
    )  # fmt: skip


def _evaluations(store: EpisodeStore) -> list[str]:
    """In the order in which they were played, as the run says; those that it does not know of behind them."""
    held = [span.stage.removeprefix(PREFIX) for span in stages(store) if span.stage.startswith(PREFIX)]
    try:
        known = [evaluation["name"] for evaluation in RunFolder.read(store.folder).evaluations()]
    except RecordError:
        known = []
    return [name for name in dict.fromkeys([*known, *held]) if name in held]


def _played(store: EpisodeStore, name: str) -> list[EpisodeRow]:
    return list(store.query(stage=PREFIX + name))
