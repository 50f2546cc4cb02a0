"""The files that pages link to: an episode as JSON or exported, the full text of a message, an image."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from sojourn.errors import RecordError
from sojourn.record.blobs import Blobs
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.export import export, format_of
from sojourn.record.export.selection import Selection
from sojourn.terminal.episode import seats
from sojourn.terminal.jsonable import jsonable
from sojourn.view.images import image_format
from sojourn.view.message_text import message_text
from sojourn.view.notes import whole_notes
from sojourn.view.page import run_cache


def as_json(request: Request) -> Response:
    """Returns the whole record of an episode as JSON, tokens and advantages included."""
    with EpisodeStore(run_cache(request).path(request.path_params["run"])) as store:
        record = store.record(request.path_params["episode"])
    data: dict[str, Any] = jsonable(record)
    return Response(json.dumps(data, indent=1) + "\n", media_type="application/json")


def export_episode(request: Request) -> Response:
    """Returns an episode in one of the formats of `sojourn export`, as a download."""
    run, format, episode = (request.path_params[name] for name in ("run", "format", "episode"))
    with TemporaryDirectory() as folder:
        out = Path(folder) / "episode"
        export(run_cache(request).path(run), out, format, Selection(episodes=(episode,)))
        data = out.read_bytes()
    name = f"{re.sub('[^A-Za-z0-9.-]', '-', episode)}{format_of(format).SUFFIX}"
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, media_type="application/octet-stream", headers=disposition)


def text(request: Request) -> Response:
    """Returns the full text of a message: the `message`-th that a turn observed (from 1), or for 0 the turn's own."""
    params = request.path_params
    with EpisodeStore(run_cache(request).path(params["run"])) as store:
        record = store.record(params["episode"])
    try:
        turn = seats(record)[params["seat"]].trajectory.turns[params["turn"]]
        message = turn.observed[params["message"] - 1] if params["message"] else turn.message
    except IndexError:
        message = None
    if message is None:
        raise RecordError(f"the episode {params['episode']} has no such message: reload its page")
    return PlainTextResponse(message_text(message).encode(errors="backslashreplace"))


def notes(request: Request) -> Response:
    """Returns the notes of a turn as one text; the turn is named by its seat and its number, such as 0.3."""
    params = request.path_params
    with EpisodeStore(run_cache(request).path(params["run"])) as store:
        record = store.record(params["episode"])
    found = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", params["turn"])
    trajectories = record.episode.trajectories
    seat, number = (int(found[1]), int(found[2])) if found else (len(trajectories), 0)
    if seat >= len(trajectories) or number >= len(trajectories[seat].turns):
        raise RecordError(f"the episode {params['episode']} has no turn {params['turn'][:20]}: reload its page")
    return PlainTextResponse(whole_notes(trajectories[seat], number).encode(errors="backslashreplace"))


def blob(request: Request) -> Response:
    """Returns an image by its digest. A blob that is not an image is refused, so no other file can be read."""
    path = run_cache(request).path(request.path_params["run"])
    data = Blobs(path / "blobs").get(request.path_params["digest"])
    kind, _, _ = image_format(data[:24])
    if kind is None:
        raise RecordError(f"the blob {request.path_params['digest'][:16]} is not a PNG, JPEG, GIF or WebP image")
    return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=86400, immutable"})
