"""Plays episodes again from a turn on, by a person at a page or by a checkpoint, in one background thread.

Nothing is written to the original run. One checkpoint's model is loaded at a time, when it is first needed.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from sojourn.abilities import ActsByProgram, blobs_of, sub_agent_models
from sojourn.agents.text_seat import TextSeat
from sojourn.arena.checkpoints import LoadedModel, load_model
from sojourn.errors import ConfigError, RecordError, cause
from sojourn.protocols import AgentContext
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.record.episodes.vocabulary import read as read_vocabulary
from sojourn.record.run import RunFolder
from sojourn.record.run_weights import find_weights
from sojourn.render import pieces
from sojourn.replay import world_of_run
from sojourn.rollout.limits import Limits, call_env
from sojourn.rollout.play import play
from sojourn.seeds import seed_of
from sojourn.timeline import Timeline
from sojourn.train import resolve as recipes
from sojourn.types import Observation, SamplingParams, Trajectory
from sojourn.view.resume_seat import PagePlayer, ReplaySampler, ResumePoint, ResumeSeat

MAX_RUNNING = 4
MAX_FINISHED = 20  # of which older ones are forgotten
IDLE_S = 900.0
PERSON = "a person"


class State(StrEnum):
    WAITING = "waiting for another re-run"  # one model plays at a time
    LOADING = "loading the model"
    PLAYING = "playing"
    WAITING_FOR_ACTION = "waiting for your action"
    DONE = "done"
    FAILED = "failed"
    ENDED = "stopped"  # by the person at the page


FINAL_STATES = (State.DONE, State.FAILED, State.ENDED)


@dataclass
class Rerun:
    """One re-run. `seat` holds its turns as they are played, the repeated ones included."""

    run: str
    path: Path
    record: Record
    turn: int
    resume_point: ResumePoint
    player: str
    weights: tuple[Path, str] | None = None
    seed: int = 0
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    state: State = State.WAITING
    problem: str = ""
    seat: Any = None
    env: Any = None
    observed: Observation | None = None  # which the person is to answer
    finished: Trajectory | None = None
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None  # of the model
    seconds: float = 0.0
    saved_folder: Path | None = None  # the run folder into which it was saved
    saved_id: str = ""  # its episode's id there
    person: PagePlayer | None = None
    task: asyncio.Task[None] | None = None  # in the thread of all re-runs
    state_changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def over(self) -> bool:
        return self.state in FINAL_STATES

    @property
    def trajectory(self) -> Trajectory:
        """Returns a trajectory of the turns that were played so far."""
        turns = tuple(self.seat.turns) if self.seat is not None else ()
        return self.finished or Trajectory(self.resume_point.before.agent, turns, self.resume_point.before.ending)

    def set_state(self, state: State) -> None:
        """Changes the state, and wakes whoever waits for a change."""
        with self.state_changed:
            self.state = state
            self.state_changed.notify_all()

    def images(self) -> Mapping[str, bytes]:
        """Returns the images that the environment has shown, by digest."""
        return self.blobs or blobs_of(self.env)


class Reruns:
    """All re-runs of a viewer; `close` stops them. Saved re-runs go to run folders under `out`."""

    def __init__(self, out: Path | None = None, idle_s: float = IDLE_S) -> None:
        self.out = out
        self.idle_s = idle_s
        self.token = secrets.token_urlsafe(16)  # of every form, so that no other site can send one
        self.reruns: dict[str, Rerun] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._model = _Model()

    def start(self, rerun: Rerun) -> Rerun:
        """Starts a re-run; raises ConfigError if `MAX_RUNNING` are running already."""
        with self._lock:
            running = [one for one in self.reruns.values() if not one.over]
            if len(running) >= MAX_RUNNING:
                raise ConfigError(f"{len(running)} re-runs are running, which is the limit: stop one of them at /play")
            for old in [one for one in self.reruns.values() if one.over][: max(0, len(self.reruns) - MAX_FINISHED)]:
                del self.reruns[old.id]
            self.reruns[rerun.id] = rerun
        self._event_loop().call_soon_threadsafe(self._begin, rerun)
        return rerun

    def get(self, name: str) -> Rerun:
        if name not in self.reruns:
            raise RecordError("this re-run is not in memory any more: start it again from its episode's page")
        return self.reruns[name]

    def act(self, rerun: Rerun, action: str) -> None:
        """Gives a person's action to the re-run; does nothing if it does not wait for one."""
        with rerun.state_changed:
            if rerun.state is not State.WAITING_FOR_ACTION:
                return
            rerun.observed = None
            rerun.set_state(State.PLAYING)

        def answer() -> None:
            if rerun.person is not None and rerun.person.answer is not None and not rerun.person.answer.done():
                rerun.person.answer.set_result(action)

        self._event_loop().call_soon_threadsafe(answer)

    def end(self, rerun: Rerun) -> None:
        """Stops a re-run; `wait_until_settled` then waits until it is over."""
        if rerun.over:
            return
        with rerun.state_changed:
            if rerun.state is State.WAITING_FOR_ACTION:
                rerun.observed = None
                rerun.set_state(State.PLAYING)
        self._event_loop().call_soon_threadsafe(_cancel, rerun)

    async def wait_until_settled(self, rerun: Rerun, wait_s: float) -> None:
        """Waits until a re-run is over or needs an action, for at most `wait_s` seconds."""

        def wait() -> None:
            with rerun.state_changed:
                rerun.state_changed.wait_for(lambda: rerun.over or rerun.state is State.WAITING_FOR_ACTION, wait_s)

        await asyncio.to_thread(wait)

    def close(self) -> None:
        """Stops all re-runs, and closes their environments and the model."""
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
        reruns = list(self.reruns.values())
        for rerun in reruns:
            _cancel(rerun)
        await asyncio.gather(*(rerun.task for rerun in reruns if rerun.task is not None), return_exceptions=True)
        await self._model.close()

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="re-runs", daemon=True)
                self._thread.start()
            return self._loop

    def _begin(self, rerun: Rerun) -> None:
        rerun.task = asyncio.create_task(self._run(rerun), name=f"rerun {rerun.id}")
        # a task that is cancelled before its first step runs nothing of `_run`
        rerun.task.add_done_callback(lambda task: rerun.set_state(State.ENDED) if task.cancelled() else None)

    async def _run(self, rerun: Rerun) -> None:
        """Plays a re-run; this is the only place that turns what it raises into a sentence on its page."""
        try:
            async with AsyncExitStack() as stack:
                await self._play(rerun, stack)
        except (Exception, SystemExit) as error:
            rerun.problem = cause(error)
            rerun.set_state(State.FAILED)
        else:
            rerun.set_state(State.DONE)

    async def _play(self, rerun: Rerun, stack: AsyncExitStack) -> None:
        run = RunFolder.read(rerun.path)
        limits, timeline = _limits(run, len(rerun.resume_point.before.turns)), Timeline()
        family = await stack.enter_async_context(world_of_run(run))
        rerun.seat = await self._seat(rerun, stack)
        rerun.set_state(State.PLAYING)
        seat = ResumeSeat(rerun.resume_point, rerun.seat)
        began = time.monotonic()
        rerun.env = env = family.make(rerun.record.episode.task)
        try:
            seats, world = {rerun.resume_point.before.agent: seat}, rerun.record.episode.task.env
            rerun.finished = (await play(env, seats, limits, timeline, world))[0]
        finally:
            rerun.blobs = dict(blobs_of(env))
            rerun.env, rerun.observed, rerun.seconds = None, None, time.monotonic() - began
            await call_env(env.close, limits, timeline)

    async def _seat(self, rerun: Rerun, stack: AsyncExitStack) -> Any:
        before = rerun.resume_point.before
        if rerun.weights is None:

            async def wait_for_action(observation: Observation) -> None:
                rerun.observed = observation
                rerun.set_state(State.WAITING_FOR_ACTION)

            rerun.person = PagePlayer(before.turns, self.idle_s, wait_for_action)
            return TextSeat(before.agent, rerun.person)
        await stack.enter_async_context(self._model.lock)
        rerun.set_state(State.LOADING)
        loaded = await self._model.load(*rerun.weights)
        if isinstance(loaded.recipe.agent, ActsByProgram):
            raise ConfigError(
                f"{loaded.recipe.agent.program} acted, which nobody can have act from a turn on: act yourself instead"
            )
        if sub_agent_models(loaded.recipe.agent):
            raise ConfigError(
                f"the agent {type(loaded.recipe.agent).__name__} calls other agents, of which a re-run would show "
                "nothing: act yourself instead"
            )
        rerun.vocabulary = pieces.of(loaded.renderer)
        same = rerun.vocabulary is not None and rerun.vocabulary == read_vocabulary(rerun.path)
        replay_sampler = ReplaySampler(loaded.sampler, loaded.renderer, before.turns, same)
        params = SamplingParams(1, seed=seed_of(rerun.seed, "rerun", rerun.record.episode.id, rerun.turn))
        context = AgentContext(
            name=before.agent, renderer=loaded.renderer, sampler=replay_sampler, params=params, max_context=1
        )
        return loaded.recipe.agent.seat(loaded.context(context, sampler=replay_sampler))


def _cancel(rerun: Rerun) -> None:
    """Cancels the task of a re-run once: a second time would cancel the end of its world."""
    if rerun.task is not None and not rerun.task.cancelling():
        rerun.task.cancel()


def _limits(run: RunFolder, recorded_turns: int) -> Limits:
    """Returns the limits of the run, with at least one turn after the repeated ones and no limit on time."""
    rollout = run.config.get("rollout")
    own = rollout.get("limits") if isinstance(rollout, Mapping) else None
    turns, stall_s = (own.get("turns"), own.get("stall_s")) if isinstance(own, Mapping) else (None, None)
    limits = Limits()
    turns = turns if isinstance(turns, int) else limits.turns
    stall_s = stall_s if isinstance(stall_s, (int, float)) and stall_s > 0 else limits.stall_s
    return Limits(turns=max(turns, recorded_turns + 1), stall_s=stall_s)


class _Model:
    """Keeps the last used model loaded until another one is needed."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._name: tuple[Path, str] | None = None
        self._loaded: LoadedModel | None = None
        self._stack = AsyncExitStack()

    async def load(self, run: Path, weights_name: str) -> LoadedModel:
        if self._name != (run, weights_name) or self._loaded is None:
            await self.close()
            weights = find_weights(run, weights_name)
            self._loaded = await self._stack.enter_async_context(load_model(recipes.load(run).recipe, weights))
            self._name = (run, weights_name)
        return self._loaded

    async def close(self) -> None:
        self._name = self._loaded = None
        await self._stack.aclose()
