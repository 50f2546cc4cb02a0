"""Search over the episodes of a run: a query is part of the page's address."""

from __future__ import annotations

from starlette.requests import Request

from sojourn.errors import QueryError
from sojourn.record.search.query import KEYS, Query
from sojourn.record.search.search_results import SearchResults
from sojourn.view.page import Page, render, shelf

ROWS = 20  # of a page


def index(request: Request) -> Page:
    key = request.path_params["run"]
    asked, after = request.query_params.get("q", ""), request.query_params.get("after", "")
    found, trouble = SearchResults((), 0, None), ""
    shown = shelf(request)
    with shown.store(shown.path(key)) as store:
        try:
            found = store.search(Query.parse(asked), ROWS, after)
        except QueryError as error:
            trouble = str(error)
        tags, tools = store.labels("tag")[:100], store.labels("tool")[:100]
    return render(
        request, "find.html", status_code=400 if trouble else 200, run=key, query=asked, after=after, found=found,
        trouble=trouble, keys=KEYS, tags=tags, tools=tools, missing=store.troubles,
    )  # fmt: skip
