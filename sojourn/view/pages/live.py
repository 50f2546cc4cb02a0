"""The pages of a live service: its sessions, its traffic and its releases; and one session, turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from sojourn.errors import RecordError
from sojourn.live import reading
from sojourn.live.reading import LiveReading, SessionRow
from sojourn.live.store import LiveStore
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.vocabulary import read as read_vocabulary
from sojourn.record.run_status import RunStatus
from sojourn.record.summary import Summary
from sojourn.sources.live import ENV
from sojourn.types import Ending, Episode, Task, Trajectory, Turn
from sojourn.view.episode import EpisodeView
from sojourn.view.images import run_image
from sojourn.view.message_text import message_text
from sojourn.view.notes import whole_notes
from sojourn.view.page import Page, address, render, run_cache
from sojourn.view.releases import releases_view
from sojourn.view.tokens import colour_maximum, colourings

SESSIONS_PER_PAGE = 50


def index(request: Request) -> Page:
    key = request.path_params["run"]
    cache = run_cache(request)
    path = cache.path(key)
    status = cache.status(path)
    skip = request.query_params.get("skip", "")
    skipped = int(skip) if skip.isdecimal() and len(skip) < 10 else 0
    found, problem = _read(path, skipped)
    return render(
        request, "live.html", run=key, status=status, found=found, skipped=skipped, per_page=SESSIONS_PER_PAGE,
        releases=releases_view(found, _evaluations(status)) if found else None, has_store=reading.has_store(path),
        trained=_recorded(request, path, found.sessions) if found else {}, utc=utc,
        requests=found.requests() if found else None, problems=[problem] if problem else [],
    )  # fmt: skip


def session(request: Request) -> Page:
    """Shows the turns of a session as the store keeps them, with the requests behind them."""
    key, name = request.path_params["run"], request.path_params["session"]
    cache = run_cache(request)
    path = cache.path(key)
    with reading.opened(path) as store:
        row = reading.session(store, name)
        record, feedback = _record(row, _shown(store, row)), store.feedback(name) if row.consent else []
    known = {name: text for name, text in colourings(record).items() if name != "lag"}
    colouring = request.query_params.get("tokens", "")
    colouring = colouring if colouring in known else ""
    view = EpisodeView(
        version=None,
        full_text=lambda seat, turn, message: address("runs", key, "text", "live", turn, name),
        image=lambda digest: run_image(path, key, digest),
        colouring=colouring,
        colour_max=colour_maximum(record, colouring) if colouring else 0.0,
        vocabulary=read_vocabulary(path) if colouring else None,
    )
    return render(
        request, "live_session.html", run=key, row=row, turns=list(view.turns(record)), colouring=colouring,
        colourings=known, feedback=feedback, episode=_recorded(request, path, [row]).get(name), utc=utc,
    )  # fmt: skip


def text(request: Request) -> Response:
    """Returns a turn of a session as text: its messages, and its notes."""
    params = request.path_params
    with reading.opened(run_cache(request).path(params["run"])) as store:
        row = reading.session(store, params["session"])
        record = _record(row, _shown(store, row))
    [trajectory] = record.episode.trajectories
    if params["turn"] >= len(trajectory.turns):
        raise RecordError(f"the session {params['session']} has no turn {params['turn']}: reload its page")
    turn = trajectory.turns[params["turn"]]
    said = [*turn.observed, *([turn.message] if turn.message else [])]
    parts = [f"{message.role.value}:\n{message_text(message)}" for message in said]
    whole = "\n\n".join([*parts, whole_notes(trajectory, params["turn"])])
    return PlainTextResponse(whole.encode(errors="backslashreplace"))


def utc(seconds: float | None) -> str:
    """Returns a time in seconds since 1970 as a date and a time of day."""
    return "-" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _read(path: Path, skip: int) -> tuple[LiveReading | None, str]:
    """Returns what the store of a run says, or a sentence about why it cannot be read."""
    if not reading.has_store(path):
        return None, ""
    try:
        return reading.read(path, SESSIONS_PER_PAGE, skip), ""
    except RecordError as error:
        return None, str(error)


def _evaluations(status: RunStatus) -> dict[str, Summary]:
    return {one.name: one.summary for one in status.evaluations}


def _recorded(request: Request, path: Path, sessions: Sequence[SessionRow]) -> dict[str, str]:
    """Returns the ids of the episodes that sessions were trained as, by their keys, where the run still has them."""
    ids = {f"live-{one.key}": one for one in sessions if one.step is not None}
    with run_cache(request).store(path) as store:
        stages = {one.stage for one in ids.values() if one.stage is not None}
        held = {id for stage in stages for id in store.holds(stage, ids)}
    return {ids[id].key: id for id in held}


def _shown(store: LiveStore, row: SessionRow) -> tuple[Turn, ...]:
    """Returns the turns of a session; none where its person does not agree any more."""
    return store.turns(row.key) if row.consent else ()


def _record(row: SessionRow, turns: Sequence[Turn]) -> Record:
    task = Task(ENV, {"session": row.key, "release": row.release}, 0, "live")
    seconds = (row.ended or row.touched) - row.opened
    trajectory = Trajectory("agent", tuple(turns), Ending.DONE)
    return Record(Episode(f"live-{row.key}", task, (trajectory,), None, seconds))
