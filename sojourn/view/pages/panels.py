"""The same panel of tasks under two evaluations, of one run or of two."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request

from sojourn.errors import RecordError
from sojourn.record.entry import Entry
from sojourn.record.run import RunFolder
from sojourn.record.store import EpisodeStore
from sojourn.view.page import Page, library, render
from sojourn.view.panels import compare

PREFIX = "evaluation-"


def index(request: Request) -> Page:
    key = request.path_params["run"]
    shown = library(request)
    other = request.query_params.get("other", key) or key
    first = _evaluations(shown.path(key))
    second = first if other == key else _evaluations(shown.path(other))
    a = request.query_params.get("a") or next(iter(first), "")
    b = request.query_params.get("b") or next(reversed(second), "")
    found = compare(_played(shown.path(key), a), _played(shown.path(other), b)) if a and b else None
    return render(
        request, "panels.html", run=key, other=other, runs=list(shown.paths()), first=first, second=second,
        a=a, b=b, found=found,
    )  # fmt: skip


def _evaluations(path: Path) -> list[str]:
    """In the order in which they were played, as the run says; those that it does not know of behind them."""
    with EpisodeStore(path) as store:
        held = [count.stage.removeprefix(PREFIX) for count in store.steps() if count.stage.startswith(PREFIX)]
    held = list(dict.fromkeys(held))
    try:
        known = [evaluation["name"] for evaluation in RunFolder.read(path).evaluations()]
    except RecordError:
        known = []
    return [name for name in dict.fromkeys([*known, *held]) if name in held]


def _played(path: Path, name: str) -> list[Entry]:
    with EpisodeStore(path) as store:
        return list(store.query(stage=PREFIX + name))
