"""Playing an episode again from a turn on: who is to play, the play itself, and what came of it beside the original.

Worlds are executed only where the viewer was started for it, and only for forms of its own pages.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sojourn.arena.checkpoints import weights
from sojourn.errors import ConfigError, RecordError, SojournError
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.terminal.find import found
from sojourn.types import Episode, Score, Trajectory
from sojourn.view.episode import TurnView, View
from sojourn.view.images import Picture, measured, picture
from sojourn.view.message_text import message_text
from sojourn.view.page import Page, address, render, shelf
from sojourn.view.reruns import PERSON, Rerun, Reruns, State
from sojourn.view.resume_seat import Start
from sojourn.view.save_rerun import keep

LARGEST = 1 << 20  # bytes of a form
ANSWER_S = 5.0  # that a page waits for a world
BEGIN_S = 1.0  # and for a model
OFF = "Re-running executes the worlds of runs, so it is off unless the viewer is started with `sojourn view --play`."


class Pair(NamedTuple):
    """The same turn twice, None where one of the two had ended."""

    number: int
    before: TurnView | None
    now: TurnView | None


class RefusedError(SojournError):
    """A form that is not of a page of this viewer."""


def choose(request: Request) -> Page:
    """Who is to play from a turn on."""
    key, name, turn = (request.path_params[part] for part in ("run", "episode", "turn"))
    path = shelf(request).path(key)
    reruns: Reruns | None = request.app.state.reruns
    with EpisodeStore(path) as store:
        entry = found(store, name)
        record = store.read(entry)
    trouble = OFF if reruns is None else ""
    try:
        Start.of(record.episode, turn - 1)
    except ConfigError as error:
        trouble = trouble or str(error)
    return render(
        request, "new_rerun.html", run=key, entry=entry, turn=turn, trouble=trouble, off=reruns is None,
        players=_players(request) if not trouble else {}, token=reruns.token if reruns is not None else "",
    )  # fmt: skip


async def begin(request: Request) -> Response:
    reruns, form = await _form(request)
    rerun = reruns.begin(await run_in_threadpool(_asked, request, form))
    await reruns.settled(rerun, ANSWER_S if rerun.weights is None else BEGIN_S)
    return RedirectResponse(address("play", rerun.id), 303)


def plays(request: Request) -> Page:
    """All re-runs of this viewer."""
    reruns: Reruns | None = request.app.state.reruns
    listed = list(reversed(reruns.found.values())) if reruns is not None else []
    return render(request, "reruns.html", plays=listed, off=OFF if reruns is None else "")


def play(request: Request) -> Page:
    """One re-run, beside the original."""
    reruns = _reruns(request)
    rerun = reruns.get(request.path_params["play"])
    pairs = _pairs(request, rerun)
    asked = rerun.observed if rerun.state is State.ASKING else None
    view = _view(rerun)
    shown = () if asked is None else [view.spoken(m, 0, 0, 0) for m in (*asked.system, *asked.messages)]
    kept = next((key for key, path in shelf(request).paths().items() if path == rerun.kept), "")
    return render(
        request, "rerun.html", rerun=rerun, pairs=pairs, asked=asked, shown=shown, token=reruns.token,
        now=rerun.trajectory, original=rerun.record.episode.trajectories[0], kept=kept, keeps=reruns.out is not None,
        waits=not rerun.over and asked is None,
    )  # fmt: skip


async def act(request: Request) -> Response:
    reruns, form = await _form(request)
    rerun = reruns.get(request.path_params["play"])
    said = form.get("action", "").replace("\r\n", "\n").strip()
    if said:
        reruns.act(rerun, said)
        await reruns.settled(rerun, ANSWER_S)
    return RedirectResponse(address("play", rerun.id), 303)


async def end(request: Request) -> Response:
    reruns, _ = await _form(request)
    rerun = reruns.get(request.path_params["play"])
    reruns.end(rerun)
    await reruns.settled(rerun, ANSWER_S)
    return RedirectResponse(address("play", rerun.id), 303)


async def kept(request: Request) -> Response:
    reruns, _ = await _form(request)
    rerun = reruns.get(request.path_params["play"])
    await run_in_threadpool(keep, reruns, rerun)
    return RedirectResponse(address("play", rerun.id), 303)


def blob(request: Request) -> Response:
    """An image that the world of a re-run showed."""
    rerun = _reruns(request).get(request.path_params["play"])
    data = rerun.pictures().get(request.path_params["digest"], b"")
    kind, _, _ = measured(data[:24])
    if kind is None:
        raise RecordError(f"this re-run shows no image {request.path_params['digest'][:16]}")
    return Response(data, media_type=kind)


def text(request: Request) -> Response:
    """A message of a re-run, whole."""
    rerun = _reruns(request).get(request.path_params["play"])
    turn, at = request.path_params["turn"], request.path_params["message"]
    turns = rerun.trajectory.turns
    messages = [turns[turn].message, *turns[turn].observed] if turn < len(turns) else []
    message = messages[at] if at < len(messages) else None
    if message is None:
        raise RecordError("this re-run has no such message: open it anew")
    return Response(message_text(message).encode(errors="backslashreplace"), media_type="text/plain; charset=utf-8")


async def refused(request: Request, error: Exception) -> Page:
    """The page for a form that is not obeyed."""
    return render(request, "error.html", status_code=403, told=str(error))


def _reruns(request: Request) -> Reruns:
    if request.app.state.reruns is None:
        raise RefusedError(OFF)
    return request.app.state.reruns


async def _form(request: Request) -> tuple[Reruns, Mapping[str, str]]:
    """The fields of a form that a page of this viewer sent; RefusedError for any other."""
    reruns = _reruns(request)
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = request.headers.get("host", "")
    if site not in (None, "same-origin") or (origin is not None and urlsplit(origin).netloc != own):
        raise RefusedError("this form was sent by a page of another origin: nothing was done")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            raise RefusedError(f"a form may hold {LARGEST} bytes: say less")
    fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
    form = {name: values[-1] for name, values in fields.items()}
    if not hmac.compare_digest(form.get("token", "").encode(), reruns.token.encode()):
        raise RefusedError("this form is not of a page that this viewer made: open the page anew")
    return reruns, form


def _players(request: Request) -> dict[str, list[str]]:
    """The weights of every run that has any, by key."""
    found: dict[str, list[str]] = {}
    for key, path in shelf(request).paths().items():
        try:
            held = [one.word for one in weights(path) if one.checkpoint is not None]
        except (RecordError, OSError):
            continue
        if held:
            found[key] = held[::-1]
    return found


def _asked(request: Request, form: Mapping[str, str]) -> Rerun:
    """The re-run that a form asks for."""
    key, name, who = form.get("run", ""), form.get("episode", ""), form.get("who", "")
    path = shelf(request).path(key)
    try:
        turn, seed = int(form.get("turn", "")) - 1, int(form.get("seed") or 0)
    except ValueError:
        raise ConfigError("the turn and the seed of a re-run are whole numbers") from None
    with EpisodeStore(path) as store:
        record = store.read(found(store, name))
    start = Start.of(record.episode, turn)
    if who == "person":
        return Rerun(key, path, record, turn, start, PERSON)
    run, _, word = who.rpartition("@")
    return Rerun(key, path, record, turn, start, who, (shelf(request).path(run), word), seed)


def _view(rerun: Rerun) -> View:
    def pictured(digest: str) -> Picture:
        data = rerun.pictures().get(digest)
        if data is None:
            return Picture("", 0, 0, f"the image {digest[:16]} is not there any more")
        _, width, height = measured(data[:24])
        return Picture(address("play", rerun.id, "blobs", digest), width, height)

    return View(
        version=None,
        whole=lambda seat, turn, message: address("play", rerun.id, "text", turn, message),
        pictured=pictured,
    )


def _pairs(request: Request, rerun: Rerun) -> list[Pair]:
    """From the handover on; a person is not told what comes before they come to it."""
    key, path, episode = rerun.run, rerun.path, rerun.record.episode
    original = View(
        version=None,
        whole=lambda seat, turn, message: address("runs", key, "text", seat, turn, message, episode.id),
        pictured=lambda digest: picture(path, key, digest),
    )
    given = len(rerun.start.before.turns)
    whole = replace(rerun.start.before, turns=(*rerun.start.before.turns, *rerun.start.after))
    before = list(original.turns(_as_record(episode, whole)))[given:]
    now = list(_view(rerun).turns(_as_record(episode, rerun.trajectory)))[given:]
    return [
        Pair(given + at + 1, before[at] if at < len(before) else None, now[at] if at < len(now) else None)
        for at in range(max(0 if rerun.voice is not None and not rerun.over else len(before), len(now)))
    ]


def _as_record(episode: Episode, trajectory: Trajectory) -> Record:
    """A trajectory that need not be over, as the only one of its episode, with what the world paid for each turn."""
    paid = np.array([turn.reward for turn in trajectory.turns], dtype=np.float32)
    return Record(replace(episode, trajectories=(replace(trajectory, trainable=True),)), (Score(paid),))
