"""The page that searches the episodes of a run; the query is part of its address."""

from __future__ import annotations

from starlette.requests import Request

from sojourn.errors import QueryError
from sojourn.record.search.query import KEYS, Query
from sojourn.record.search.search_results import SearchResults
from sojourn.view.page import Page, render, run_cache

ROWS_PER_PAGE = 20


def index(request: Request) -> Page:
    key = request.path_params["run"]
    query, after = request.query_params.get("q", ""), request.query_params.get("after", "")
    found, problem = SearchResults((), 0, None), ""
    cache = run_cache(request)
    with cache.store(cache.path(key)) as store:
        try:
            found = store.search(Query.parse(query), ROWS_PER_PAGE, after)
        except QueryError as error:
            problem = str(error)
        tags, tools = store.labels("tag")[:100], store.labels("tool")[:100]
    return render(
        request, "find.html", status_code=400 if problem else 200, run=key, query=query, after=after, found=found,
        problem=problem, keys=KEYS, tags=tags, tools=tools, problems=store.troubles,
    )  # fmt: skip
