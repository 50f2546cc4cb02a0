"""The page of all runs: their states, their success and their evaluations, with a form to compare some."""

from __future__ import annotations

from starlette.requests import Request

from sojourn.record.run_status import RunStatus
from sojourn.view.charts import spark
from sojourn.view.page import Page, render, run_cache


def index(request: Request) -> Page:
    cache = run_cache(request)
    filter_text = request.query_params.get("q", "")
    words = filter_text.lower().split()
    state = request.query_params.get("state", "")
    statuses = list(cache.statuses())
    rows = [
        (key, run, spark([line.values.get("success", float("nan")) for line in cache.lines(run.path)], fraction=True))
        for key, run in statuses
        if all(word in _search_text(key, run) for word in words) and state in ("", run.state)
    ]
    return render(
        request, "runs.html", rows=rows,
        metrics_problems={key: cache.metrics_problems(run.path) for key, run, _ in rows},
        total=len(statuses), filter=filter_text, state=state,
        folders=[str(folder) for folder in cache.folders],
        states=sorted({run.state.value for _, run in statuses}),
    )  # fmt: skip


def _search_text(key: str, run: RunStatus) -> str:
    """Returns the lower-case text in which the words of the filter are looked for."""
    return " ".join([key, run.recipe, run.model, *run.worlds, *run.tags, f"seed={run.seed}", run.state]).lower()
