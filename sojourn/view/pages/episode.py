"""The page of an episode: its turns, and on request its sampled tokens and the exact prompt of a turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from sojourn.errors import RecordError
from sojourn.record.episodes.address import Address
from sojourn.record.episodes.origins import recorded_origin
from sojourn.record.episodes.vocabulary import read as read_vocabulary
from sojourn.terminal.asked import asked_summary, asked_views
from sojourn.terminal.episode import play_again
from sojourn.terminal.find import find_episode, group_episodes
from sojourn.view.episode import EpisodeView, seat_ends, trained_version
from sojourn.view.images import run_image
from sojourn.view.page import Page, address, render, run_cache
from sojourn.view.resume_seat import turns_to_resume
from sojourn.view.tokens import colour_maximum, colourings

Read = TypeVar("Read")


def index(request: Request) -> Page:
    key, name = request.path_params["run"], request.path_params["episode"]
    cache = run_cache(request)
    path = cache.path(key)
    problems: list[str] = []
    with cache.store(path) as store:
        entry = find_episode(store, name)
        siblings = group_episodes(store, entry.stage, entry.step, entry.place)
        record = _read_or_report(problems, lambda: store.read(entry))
        origin = recorded_origin(store, entry)
        problems += store.troubles
    colouring = request.query_params.get("tokens", "")
    known = colourings(record) if record else {}
    colouring = colouring if colouring in known else ""
    prompt_of = request.query_params.get("prompt", "")
    view = EpisodeView(
        version=trained_version(cache.lines(path), entry),
        full_text=lambda seat, turn, message: address("runs", key, "text", seat, turn, message, entry.id),
        image=lambda digest: run_image(path, key, digest),
        colouring=colouring,
        colour_max=colour_maximum(record, colouring) if record and colouring else 0.0,
        prompt_of=prompt_of,
        vocabulary=_read_or_report(problems, lambda: read_vocabulary(path)) if colouring or prompt_of else None,
    )
    at = next((k for k, sibling in enumerate(siblings) if sibling.id == entry.id), 0)
    return render(
        request, "episode.html", run=key, episode=entry, data=dict(record.episode.task.data) if record else None,
        turns=list(view.turns(record)) if record else [], seat_ends=seat_ends(record, linked=True) if record else [],
        resumable=turns_to_resume(record.episode) if record else (),
        problems=problems, colouring=colouring, colourings=known, siblings=siblings,
        close_error=record.episode.close_error if record else None, branch=record.episode.branch if record else None,
        traceback=record.episode.traceback if record else None,
        again=play_again(path, record.episode.task) if record else "",
        asked=asked_views(record.asked, entry.id) if record else [],
        asked_summary=asked_summary(record.asked) if record else "",
        origin=origin, place=Address(entry.stage, entry.step, entry.place, at),
        no_vocabulary=bool(colouring or prompt_of) and view.vocabulary is None,
        before=siblings[at - 1] if at else None, after=siblings[at + 1] if at + 1 < len(siblings) else None,
    )  # fmt: skip


def _read_or_report(problems: list[str], read: Callable[[], Read]) -> Read | None:
    """Returns what `read` returns, or None after adding the reason to `problems` if it raises RecordError."""
    try:
        return read()
    except RecordError as error:
        problems.append(str(error))
        return None
