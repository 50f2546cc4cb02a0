"""All runs: how they stand, what their evaluations said, and which to compare."""

from __future__ import annotations

from starlette.requests import Request

from sojourn.record.run_status import RunStatus
from sojourn.view.charts import spark
from sojourn.view.page import Page, render, shelf


def index(request: Request) -> Page:
    shown = shelf(request)
    wanted = request.query_params.get("q", "").lower().split()
    state = request.query_params.get("state", "")
    every = list(shown.standings())
    rows = [
        (
            key,
            standing,
            spark([line.values.get("success", float("nan")) for line in shown.lines(standing.path)], share=True),
        )
        for key, standing in every
        if all(word in _words(key, standing) for word in wanted) and state in ("", standing.state)
    ]
    return render(
        request, "runs.html", rows=rows,
        lost={key: shown.lost(run.path) for key, run, _ in rows},
        total=len(every), wanted=request.query_params.get("q", ""), state=state,
        folders=[str(folder) for folder in shown.folders],
        states=sorted({standing.state.value for _, standing in every}),
    )  # fmt: skip


def _words(key: str, run: RunStatus) -> str:
    return " ".join([key, run.recipe, run.model, *run.worlds, *run.tags, f"seed={run.seed}", run.state]).lower()
