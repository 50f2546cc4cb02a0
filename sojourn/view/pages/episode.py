"""One episode: its turns as a person reads them, and at a toggle every token that was sampled."""

from __future__ import annotations

from starlette.requests import Request

from sojourn.record.store import EpisodeStore
from sojourn.record.vocabulary import read as read_vocabulary
from sojourn.terminal.find import found
from sojourn.view.episode import View, ends, version_of
from sojourn.view.page import Page, address, library, render
from sojourn.view.pictures import picture
from sojourn.view.tokens import colourings, largest


def index(request: Request) -> Page:
    key, name = request.path_params["run"], request.path_params["episode"]
    shown = library(request)
    path = shown.path(key)
    with EpisodeStore(path) as store:
        entry = found(store, name)
        record = store.read(entry)
        siblings = [e for e in store.query(stage=entry.stage, step=entry.step) if e.place == entry.place]
    colouring = request.query_params.get("tokens", "")
    known = colourings(record)
    colouring = colouring if colouring in known else ""
    asked = request.query_params.get("prompt", "")
    view = View(
        version=version_of(shown.lines(path), entry),
        whole=lambda seat, turn, message: address("runs", key, "text", seat, turn, message, entry.id),
        pictured=lambda digest: picture(path, key, digest),
        colouring=colouring,
        full=largest(record, colouring) if colouring else 0.0,
        asked=asked,
        vocabulary=read_vocabulary(path) if colouring or asked else None,
    )
    at = next((k for k, sibling in enumerate(siblings) if sibling.id == entry.id), 0)
    return render(
        request, "episode.html", run=key, entry=entry, episode=record.episode, turns=list(view.turns(record)),
        ends=ends(record), colouring=colouring, asked=asked, colourings=known, siblings=siblings,
        spoken=view.vocabulary is not None or not (colouring or asked),
        before=siblings[at - 1] if at else None, after=siblings[at + 1] if at + 1 < len(siblings) else None,
    )  # fmt: skip
