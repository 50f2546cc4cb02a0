"""The page of what agents ask people: the open questions, each with the episode so far and a form for the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sojourn.errors import RecordError
from sojourn.models.questions import MOST_CHARACTERS, Question, Questions
from sojourn.view.forms import RefusedError, read_form
from sojourn.view.page import Page, address, render, run_cache

SHOWN = 20  # questions
DISABLED = (
    "An answer goes into the episode, and is trained on, which the viewer does not allow by default: start it with "
    "`sojourn view --answer` to allow it."
)


class Asking(NamedTuple):
    """Holds the open questions of a run, how many people answered, how many nobody did, and what could not be read."""

    open: Sequence[Question]
    given: int
    unanswered: int
    problem: str


def index(request: Request) -> Page:
    return _page(request)


async def answer(request: Request) -> Response:
    """Passes on the answer of a form. Where it comes too late, the page says so, and still has what was written."""
    token: str = request.app.state.answering
    if not token:
        raise RefusedError(DISABLED)
    form = await read_form(request, token)
    key = request.path_params["run"]
    questions = Questions(run_cache(request).path(key))
    try:
        await run_in_threadpool(questions.answer, form.get("question", ""), form.get("answer", ""))
    except RecordError as error:
        return await run_in_threadpool(_page, request, str(error), form.get("answer", ""), form.get("question", ""))
    return RedirectResponse(address("runs", key, "questions"), 303)


def _page(request: Request, refused: str = "", written: str = "", of: str = "") -> Page:
    """Shows the page; `refused` says why the answer `written` to the question `of` was not taken."""
    key = request.path_params["run"]
    cache = run_cache(request)
    path = cache.path(key)
    found = read_asking(path)
    return render(
        request, "questions.html", status_code=409 if refused else 200, run=key, found=found, shown=SHOWN,
        status=cache.status(path), path=path, token=request.app.state.answering, disabled=DISABLED,
        most=MOST_CHARACTERS, written=written, of=of, kept=any(one.key == of for one in found.open),
        problems=filter(None, [refused, found.problem]),
    )  # fmt: skip


def read_asking(path: Path) -> Asking:
    """Returns what is asked in the run of a folder."""
    questions = Questions(path)
    try:
        return Asking(questions.open(), *questions.counts(), "")
    except RecordError as error:
        return Asking((), 0, 0, str(error))
