"""Episodes that are played again from a turn on, by a person at a page or by a checkpoint, in a thread of their own.

Nothing is written to the run that they are of. A checkpoint's model is loaded when it is first needed, one at a time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import secrets
import threading
import time
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from sojourn.arena.checkpoints import Filled, chosen, loaded
from sojourn.arena.text_seat import SpokenSeat
from sojourn.errors import ConfigError, RecordError, cause
from sojourn.protocols import AgentContext
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.record.episodes.vocabulary import read as read_vocabulary
from sojourn.record.run import RunFolder
from sojourn.render import pieces
from sojourn.replay import world_of_run
from sojourn.rollout.play import Limits, ask, play
from sojourn.rollout.runner import seed_of
from sojourn.timeline import Timeline
from sojourn.train import resolve as recipes
from sojourn.types import Observation, SamplingParams, Trajectory
from sojourn.view.resume_seat import Handover, PageVoice, Recited, Start

MOST = 4  # that go on at once
REMEMBERED = 20  # that are over
IDLE_S = 900.0
PERSON = "a person"


class State(StrEnum):
    WAITING = "waiting for its turn"  # one model plays at a time
    LOADING = "loading the model"
    PLAYING = "playing"
    ASKING = "asking"  # the person
    DONE = "done"
    FAILED = "failed"
    ENDED = "ended"  # by whoever looked


OVER = (State.DONE, State.FAILED, State.ENDED)


@dataclass
class Rerun:
    """One of them. `seat` has its turns, those of the record before the handover included, as they are made."""

    run: str
    path: Path
    record: Record
    turn: int
    start: Start
    who: str
    weights: tuple[Path, str] | None = None
    seed: int = 0
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    state: State = State.WAITING
    trouble: str = ""
    seat: Any = None
    env: Any = None
    observed: Observation | None = None  # what the person is to answer
    finished: Trajectory | None = None
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None  # of the model's tokens
    seconds: float = 0.0
    kept: Path | None = None  # the run folder that holds it, as the episode of this id
    kept_as: str = ""
    voice: PageVoice | None = None
    task: concurrent.futures.Future[None] | None = None
    news: threading.Condition = field(default_factory=threading.Condition)

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def trajectory(self) -> Trajectory:
        """As far as it is."""
        turns = tuple(self.seat.turns) if self.seat is not None else ()
        return self.finished or Trajectory(self.start.before.agent, turns, self.start.before.ending)

    def becomes(self, state: State) -> None:
        with self.news:
            self.state = state
            self.news.notify_all()

    def pictures(self) -> Mapping[str, bytes]:
        return self.blobs or getattr(self.env, "blobs", {})


class Reruns:
    """All re-runs of a viewer; `close` ends them. What is kept goes to folders under `out`."""

    def __init__(self, out: Path | None = None, idle_s: float = IDLE_S) -> None:
        self.out = out
        self.idle_s = idle_s
        self.token = secrets.token_urlsafe(16)  # in every form, so that no other page can send one
        self.found: dict[str, Rerun] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._model = _Model()

    def begin(self, rerun: Rerun) -> Rerun:
        """Starts it; ConfigError where too many go on."""
        with self._lock:
            going = [one for one in self.found.values() if not one.over]
            if len(going) >= MOST:
                raise ConfigError(f"{len(going)} re-runs go on already: end one of them first (see /play)")
            for old in [one for one in self.found.values() if one.over][: max(0, len(self.found) - REMEMBERED)]:
                del self.found[old.id]
            self.found[rerun.id] = rerun
        rerun.task = asyncio.run_coroutine_threadsafe(self._run(rerun), self._running())
        return rerun

    def get(self, name: str) -> Rerun:
        if name not in self.found:
            raise RecordError("this re-run is not here any more: begin it anew from its episode's page")
        return self.found[name]

    def act(self, rerun: Rerun, said: str) -> None:
        """Gives the action that a person was asked for; nothing where it is not asked for any more."""
        with rerun.news:
            if rerun.state is not State.ASKING:
                return
            rerun.observed = None
            rerun.becomes(State.PLAYING)

        def answer() -> None:
            if rerun.voice is not None and rerun.voice.answer is not None and not rerun.voice.answer.done():
                rerun.voice.answer.set_result(said)

        self._running().call_soon_threadsafe(answer)

    def end(self, rerun: Rerun) -> None:
        if rerun.task is not None and not rerun.over:
            rerun.task.cancel()

    async def settled(self, rerun: Rerun, wait_s: float) -> None:
        """Waits until it is over or asks for an action, at most so long."""

        def wait() -> None:
            with rerun.news:
                rerun.news.wait_for(lambda: rerun.over or rerun.state is State.ASKING, wait_s)

        await asyncio.to_thread(wait)

    def close(self) -> None:
        """Ends all that goes on, closes their worlds and the model."""
        if self._loop is None or self._thread is None:
            return
        self._finish(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._loop = self._thread = None

    def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _close(self) -> None:
        others = [task for task in asyncio.all_tasks() if task.get_name().startswith("rerun ")]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._model.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="re-runs", daemon=True)
                self._thread.start()
            return self._loop

    async def _run(self, rerun: Rerun) -> None:
        """The only place where whatever a re-run raises becomes a sentence of its page."""
        current = asyncio.current_task()
        assert current is not None
        current.set_name(f"rerun {rerun.id}")
        try:
            async with AsyncExitStack() as stack:
                await self._play(rerun, stack)
        except asyncio.CancelledError:
            rerun.becomes(State.ENDED)
            raise
        except (Exception, SystemExit) as error:
            rerun.trouble = cause(error)
            rerun.becomes(State.FAILED)
        else:
            rerun.becomes(State.DONE)

    async def _play(self, rerun: Rerun, stack: AsyncExitStack) -> None:
        run = RunFolder.read(rerun.path)
        limits, timeline = _limits(run, len(rerun.start.before.turns)), Timeline()
        family = await stack.enter_async_context(world_of_run(run))
        rerun.seat = await self._seat(rerun, stack)
        rerun.becomes(State.PLAYING)
        seat = Handover(rerun.start, rerun.seat)
        began = time.monotonic()
        rerun.env = env = family.make(rerun.record.episode.task)
        try:
            seats, world = {rerun.start.before.agent: seat}, rerun.record.episode.task.env
            rerun.finished = (await play(env, seats, limits, timeline, world))[0]
        finally:
            rerun.blobs = dict(getattr(env, "blobs", {}))
            rerun.env, rerun.observed, rerun.seconds = None, None, time.monotonic() - began
            await ask(env.close, limits, timeline)

    async def _seat(self, rerun: Rerun, stack: AsyncExitStack) -> Any:
        before = rerun.start.before
        if rerun.weights is None:

            async def asked(observation: Observation) -> None:
                rerun.observed = observation
                rerun.becomes(State.ASKING)

            rerun.voice = PageVoice(before.turns, self.idle_s, asked)
            return SpokenSeat(before.agent, rerun.voice)
        await stack.enter_async_context(self._model.lock)
        rerun.becomes(State.LOADING)
        filled = await self._model.of(*rerun.weights)
        rerun.vocabulary = pieces.of(filled.renderer)
        same = rerun.vocabulary is not None and rerun.vocabulary == read_vocabulary(rerun.path)
        recited = Recited(filled.sampler, filled.renderer, before.turns, same)
        params = SamplingParams(1, seed=seed_of(rerun.seed, "rerun", rerun.record.episode.id, rerun.turn))
        context = AgentContext(
            name=before.agent, renderer=filled.renderer, sampler=recited, params=params, max_context=1
        )
        return filled.recipe.agent.seat(filled.context(context, sampler=recited))


def _limits(run: RunFolder, given: int) -> Limits:
    """Those of the run, with room for one action at least, and as long as it takes."""
    rollout = run.config.get("rollout")
    own = rollout.get("limits") if isinstance(rollout, Mapping) else None
    turns, stall_s = (own.get("turns"), own.get("stall_s")) if isinstance(own, Mapping) else (None, None)
    limits = Limits()
    turns = turns if isinstance(turns, int) else limits.turns
    stall_s = stall_s if isinstance(stall_s, (int, float)) and stall_s > 0 else limits.stall_s
    return Limits(turns=max(turns, given + 1), stall_s=stall_s)


class _Model:
    """The model that was used last, kept until another is asked for."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._name: tuple[Path, str] | None = None
        self._filled: Filled | None = None
        self._stack = AsyncExitStack()

    async def of(self, run: Path, word: str) -> Filled:
        if self._name != (run, word) or self._filled is None:
            await self.close()
            found = chosen(run, word)
            self._filled = await self._stack.enter_async_context(loaded(recipes.load(run).recipe, found))
            self._name = (run, word)
        return self._filled

    async def close(self) -> None:
        self._name = self._filled = None
        await self._stack.aclose()
