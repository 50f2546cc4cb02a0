"""One episode: its turns as a person reads them, and at a toggle every token that was sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from sojourn.errors import RecordError
from sojourn.record.episodes.vocabulary import read as read_vocabulary
from sojourn.terminal.find import found, group
from sojourn.view.episode import View, ends, version_of
from sojourn.view.images import picture
from sojourn.view.page import Page, address, render, shelf
from sojourn.view.tokens import colourings, largest

Read = TypeVar("Read")


def index(request: Request) -> Page:
    key, name = request.path_params["run"], request.path_params["episode"]
    shown = shelf(request)
    path = shown.path(key)
    missing: list[str] = []
    with shown.store(path) as store:
        entry = found(store, name)
        siblings = group(store, entry.stage, entry.step, entry.place)
        record = _told(missing, lambda: store.read(entry))
        missing += store.troubles
    colouring = request.query_params.get("tokens", "")
    known = colourings(record) if record else {}
    colouring = colouring if colouring in known else ""
    asked = request.query_params.get("prompt", "")
    view = View(
        version=version_of(shown.lines(path), entry),
        whole=lambda seat, turn, message: address("runs", key, "text", seat, turn, message, entry.id),
        pictured=lambda digest: picture(path, key, digest),
        colouring=colouring,
        full=largest(record, colouring) if record and colouring else 0.0,
        asked=asked,
        vocabulary=_told(missing, lambda: read_vocabulary(path)) if colouring or asked else None,
    )
    at = next((k for k, sibling in enumerate(siblings) if sibling.id == entry.id), 0)
    return render(
        request, "episode.html", run=key, entry=entry, data=dict(record.episode.task.data) if record else None,
        turns=list(view.turns(record)) if record else [], ends=ends(record, linked=True) if record else [],
        missing=missing, colouring=colouring, asked=asked, colourings=known, siblings=siblings,
        spoken=view.vocabulary is not None or not (colouring or asked),
        before=siblings[at - 1] if at else None, after=siblings[at + 1] if at + 1 < len(siblings) else None,
    )  # fmt: skip


def _told(missing: list[str], read: Callable[[], Read]) -> Read | None:
    """What is read; where it cannot be, None, and why is added to the sentences."""
    try:
        return read()
    except RecordError as error:
        missing.append(str(error))
        return None
