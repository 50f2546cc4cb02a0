"""What pages link to: an episode as JSON, a text that was too long for its page, an image."""

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
from sojourn.record.export import export
from sojourn.record.export.selection import Selection
from sojourn.terminal.episode import seats
from sojourn.terminal.plain import plain
from sojourn.view.page import shelf
from sojourn.view.pictures import measured
from sojourn.view.words import message_text

SUFFIXES = {"prov": "prov.json", "adp": "jsonl", "chat": "jsonl"}


def as_json(request: Request) -> Response:
    """The whole record of an episode, tokens and advantages included."""
    with EpisodeStore(shelf(request).path(request.path_params["run"])) as store:
        record = store.record(request.path_params["episode"])
    data: dict[str, Any] = plain(record)
    return Response(json.dumps(data, indent=1) + "\n", media_type="application/json")


def exported(request: Request) -> Response:
    """An episode in one of the formats of `sojourn export`, to be saved."""
    run, format, episode = (request.path_params[name] for name in ("run", "format", "episode"))
    with TemporaryDirectory() as folder:
        out = Path(folder) / "episode"
        export(shelf(request).path(run), out, format, Selection(episodes=(episode,)))
        data = out.read_bytes()
    name = f"{re.sub('[^A-Za-z0-9.-]', '-', episode)}.{SUFFIXES.get(format, format)}"
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, media_type="application/octet-stream", headers=disposition)


def text(request: Request) -> Response:
    """One message, whole: of a turn the `message`-th that was shown, counted from 1, or with 0 what was said."""
    asked = request.path_params
    with EpisodeStore(shelf(request).path(asked["run"])) as store:
        record = store.record(asked["episode"])
    try:
        turn = seats(record)[asked["seat"]].trajectory.turns[asked["turn"]]
        message = turn.observed[asked["message"] - 1] if asked["message"] else turn.message
    except IndexError:
        message = None
    if message is None:
        raise RecordError(f"the episode {asked['episode']} has no such message: open it anew")
    return PlainTextResponse(message_text(message).encode(errors="backslashreplace"))


def blob(request: Request) -> Response:
    """An image, and nothing else that a folder might hold: what is no image is not sent."""
    path = shelf(request).path(request.path_params["run"])
    data = Blobs(path / "blobs").get(request.path_params["digest"])
    kind, _, _ = measured(data[:24])
    if kind is None:
        raise RecordError(f"the blob {request.path_params['digest'][:16]} is no PNG, JPEG, GIF or WebP image")
    return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=86400, immutable"})
