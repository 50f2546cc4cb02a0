"""The pages that re-run an episode from a turn on: the form to start, the re-run beside the original, and the list.

Environments are executed only if the viewer was started with `--play`, and only for forms of its own pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sojourn.errors import ConfigError, RecordError
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run_weights import available_weights
from sojourn.terminal.find import find_episode
from sojourn.types import Episode, Score, Trajectory
from sojourn.view.episode import EpisodeView, TurnView
from sojourn.view.forms import RefusedError, read_form
from sojourn.view.images import Image, image_format, run_image
from sojourn.view.message_text import message_text
from sojourn.view.page import Page, address, render, run_cache
from sojourn.view.reruns import PERSON, Rerun, Reruns, State
from sojourn.view.resume_seat import ResumePoint
from sojourn.view.save_rerun import save_rerun

WORLD_WAIT_S = 5.0  # for which a page waits for an environment
MODEL_WAIT_S = 1.0  # and for a model
DISABLED = (
    "Re-running an episode executes its environment, which is not allowed by default: start the viewer with "
    "`sojourn view --play` to allow it."
)


class TurnPair(NamedTuple):
    """The same turn of the original and of the re-run, None if that episode was over before."""

    number: int
    original: TurnView | None
    rerun: TurnView | None


def new_rerun(request: Request) -> Page:
    """Shows the form that starts a re-run."""
    key, name, turn = (request.path_params[part] for part in ("run", "episode", "turn"))
    path = run_cache(request).path(key)
    reruns: Reruns | None = request.app.state.reruns
    with EpisodeStore(path) as store:
        entry = find_episode(store, name)
        record = store.read(entry)
    problem = DISABLED if reruns is None else ""
    try:
        ResumePoint.of(record.episode, turn - 1)
    except ConfigError as error:
        problem = problem or str(error)
    return render(
        request, "new_rerun.html", run=key, episode=entry, turn=turn, problem=problem, disabled=reruns is None,
        players=_players(request) if not problem else {}, token=reruns.token if reruns is not None else "",
    )  # fmt: skip


async def start(request: Request) -> Response:
    """Starts the re-run of a form."""
    reruns, form = await _form(request)
    rerun = reruns.start(await run_in_threadpool(_requested_rerun, request, form))
    await reruns.wait_until_settled(rerun, WORLD_WAIT_S if rerun.weights is None else MODEL_WAIT_S)
    return RedirectResponse(address("play", rerun.id), 303)


def rerun_list(request: Request) -> Page:
    """Lists all re-runs of this viewer, the newest first."""
    reruns: Reruns | None = request.app.state.reruns
    listed = list(reversed(reruns.reruns.values())) if reruns is not None else []
    return render(request, "reruns.html", reruns=listed, disabled=DISABLED if reruns is None else "")


def index(request: Request) -> Page:
    """Shows a re-run beside the original, with a form for the next action if a person plays."""
    reruns = _reruns(request)
    rerun = reruns.get(request.path_params["rerun"])
    pairs = _pairs(request, rerun)
    observation = rerun.observed if rerun.state is State.WAITING_FOR_ACTION else None
    messages = () if observation is None else (*observation.system, *observation.messages)
    view = _view(rerun)
    saved_run = next((key for key, path in run_cache(request).paths().items() if path == rerun.saved_folder), "")
    return render(
        request, "rerun.html", rerun=rerun, pairs=pairs, token=reruns.token, observation=observation,
        observed=[view.message(message, 0, 0, 0) for message in messages], now=rerun.trajectory,
        original=rerun.record.episode.trajectories[0], saved_run=saved_run, can_save=reruns.out is not None,
        original_turns=len(rerun.resume_point.before.turns) + len(rerun.resume_point.after),
        waits=not rerun.over and observation is None,
    )  # fmt: skip


async def act(request: Request) -> Response:
    """Passes on the action of a form."""
    reruns, form = await _form(request)
    rerun = reruns.get(request.path_params["rerun"])
    action = form.get("action", "").replace("\r\n", "\n").strip()
    if action:
        reruns.act(rerun, action)
        await reruns.wait_until_settled(rerun, WORLD_WAIT_S)
    return RedirectResponse(address("play", rerun.id), 303)


async def end(request: Request) -> Response:
    """Stops a re-run."""
    reruns, _ = await _form(request)
    rerun = reruns.get(request.path_params["rerun"])
    reruns.end(rerun)
    await reruns.wait_until_settled(rerun, WORLD_WAIT_S)
    return RedirectResponse(address("play", rerun.id), 303)


async def save(request: Request) -> Response:
    """Saves a finished re-run."""
    reruns, _ = await _form(request)
    rerun = reruns.get(request.path_params["rerun"])
    await run_in_threadpool(save_rerun, reruns, rerun)
    return RedirectResponse(address("play", rerun.id), 303)


def blob(request: Request) -> Response:
    """Returns an image that the environment of a re-run has shown."""
    rerun = _reruns(request).get(request.path_params["rerun"])
    data = rerun.images().get(request.path_params["digest"], b"")
    kind, _, _ = image_format(data[:24])
    if kind is None:
        raise RecordError(f"this re-run has no image {request.path_params['digest'][:16]}: reload its page")
    return Response(data, media_type=kind)


def text(request: Request) -> Response:
    """Returns the full text of a message of a re-run."""
    rerun = _reruns(request).get(request.path_params["rerun"])
    turn, at = request.path_params["turn"], request.path_params["message"]
    turns = rerun.trajectory.turns
    messages = [turns[turn].message, *turns[turn].observed] if turn < len(turns) else []
    message = messages[at] if at < len(messages) else None
    if message is None:
        raise RecordError("this re-run has no such message: reload its page")
    return Response(message_text(message).encode(errors="backslashreplace"), media_type="text/plain; charset=utf-8")


async def refused(request: Request, error: Exception) -> Page:
    """Renders the page for a form that is refused."""
    return render(request, "error.html", status_code=403, title="Refused", message=str(error))


def _reruns(request: Request) -> Reruns:
    if request.app.state.reruns is None:
        raise RefusedError(DISABLED)
    return request.app.state.reruns


async def _form(request: Request) -> tuple[Reruns, Mapping[str, str]]:
    """Returns the fields of a form; raises RefusedError if no page of this viewer sent it."""
    reruns = _reruns(request)
    return reruns, await read_form(request, reruns.token)


def _players(request: Request) -> dict[str, list[str]]:
    """Returns the names of the weights of every run that has a checkpoint, by key, the newest first."""
    players: dict[str, list[str]] = {}
    for key, path in run_cache(request).paths().items():
        try:
            names = [weights.name for weights in available_weights(path) if weights.checkpoint is not None]
        except (RecordError, OSError):
            continue
        if names:
            players[key] = names[::-1]
    return players


def _requested_rerun(request: Request, form: Mapping[str, str]) -> Rerun:
    """Returns the re-run that the fields of a form describe."""
    key, name, player = form.get("run", ""), form.get("episode", ""), form.get("player", "")
    path = run_cache(request).path(key)
    try:
        turn, seed = int(form.get("turn", "")) - 1, int(form.get("seed") or 0)
    except ValueError:
        raise ConfigError("the turn and the seed of a re-run must be whole numbers") from None
    with EpisodeStore(path) as store:
        record = store.read(find_episode(store, name))
    start = ResumePoint.of(record.episode, turn)
    if player == "person":
        return Rerun(key, path, record, turn, start, PERSON)
    run, _, name = player.rpartition("@")
    return Rerun(key, path, record, turn, start, player, (run_cache(request).path(run), name), seed)


def _view(rerun: Rerun) -> EpisodeView:
    """Returns how a re-run is shown: its long texts and images come from its own addresses."""

    def image(digest: str) -> Image:
        data = rerun.images().get(digest)
        if data is None:
            return Image("", 0, 0, f"the image {digest[:16]} is not in memory any more")
        _, width, height = image_format(data[:24])
        return Image(address("play", rerun.id, "blobs", digest), width, height)

    return EpisodeView(
        version=None,
        full_text=lambda seat, turn, message: address("play", rerun.id, "text", turn, message),
        image=image,
    )


def _pairs(request: Request, rerun: Rerun) -> list[TurnPair]:
    """Returns the turns from the first that is not repeated. A person does not see the original's turns in advance."""
    key, path, episode = rerun.run, rerun.path, rerun.record.episode
    original = EpisodeView(
        version=None,
        full_text=lambda seat, turn, message: address("runs", key, "text", seat, turn, message, episode.id),
        image=lambda digest: run_image(path, key, digest),
    )
    point = rerun.resume_point
    repeated = len(point.before.turns)
    recorded = replace(point.before, turns=(*point.before.turns, *point.after))
    before = list(original.turns(_as_record(episode, recorded)))[repeated:]
    now = list(_view(rerun).turns(_as_record(episode, rerun.trajectory)))[repeated:]
    count = len(now) if rerun.person is not None and not rerun.over else max(len(before), len(now))
    return [
        TurnPair(repeated + at + 1, before[at] if at < len(before) else None, now[at] if at < len(now) else None)
        for at in range(count)
    ]


def _as_record(episode: Episode, trajectory: Trajectory) -> Record:
    """Returns a record with this trajectory alone, scored by the environment's rewards; it need not be complete."""
    rewards = np.array([turn.reward for turn in trajectory.turns], dtype=np.float32)
    return Record(replace(episode, trajectories=(replace(trajectory, trainable=True),)), (Score(rewards),))
