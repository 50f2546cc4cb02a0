"""Plays many episodes at once, and tells failures of the infrastructure from failures of the policy."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from sojourn.abilities import DrawsAll, HasLowestReward, LooksAhead, PlaysElsewhere, ValueModel, blobs_of, max_turns
from sojourn.abilities.browsers import give_browser
from sojourn.agents.conversation import AskedSeat
from sojourn.blame import LOWEST, Blame, EpisodeCounts, close, close_seats
from sojourn.config.fields import Range
from sojourn.errors import ConfigError, RankError, WorldError
from sojourn.event_loop import cancelled, contained
from sojourn.failures import Attempt, require_few_failures
from sojourn.models.asking import AskedModels
from sojourn.models.spec import ServedModel
from sojourn.places import Places, PlayLimit
from sojourn.protocols import Agent, AgentContext, Env, EnvFamily, Renderer, Sampler, Seat
from sojourn.rollout.limits import Limits, call_env
from sojourn.rollout.play import OwnCourse, play
from sojourn.rollout.world import seats_of_world, world_of
from sojourn.seeds import seed_of
from sojourn.tasks.listed import check_task
from sojourn.timeline import Timeline
from sojourn.types import Episode, Group, SamplingParams, Task

ModelOf = Callable[[str, str, Sequence[str]], str]  # returns which takes a seat, from a play's label, it, and all seats
SamplerFor = Callable[[Env, str], Sampler]  # returns the sampler for a play, from its `Env` and label


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """Configures how episodes are played: how many at once, with which budgets, and what happens when a world fails.
    A failed episode is tried again up to `retries` times. One that its agent broke did not fail, but is lost (see
    `blame.py`). The run stops when more than three, and more than `max_error_rate`, of the last 100 episodes
    failed for good.
    """

    concurrency: Annotated[int, Range(1)] = 64
    limits: Limits = field(default_factory=Limits)
    retries: Annotated[int, Range(0)] = 2
    max_error_rate: Annotated[float, Range(0, 1)] = 0.2


@dataclass
class Runner:
    """Plays the episodes of one environment family with one kind of agent."""

    config: Rollout
    family: EnvFamily
    agent: Agent
    renderer: Renderer
    sampler: Sampler
    max_context: int
    seed: int
    on_episode: Callable[[Episode], None] = lambda episode: None
    on_blobs: Callable[[Mapping[str, bytes]], None] = lambda blobs: None  # images of an episode, before `on_episode`
    errors: int = 0
    timeline: Timeline = field(default_factory=Timeline)
    critic: ValueModel | None = None  # for agents and branching rules that ask it
    model_of: ModelOf = lambda label, seat, seats: "policy"
    trained: Collection[str] = ("policy",)  # the models that learn in the run
    asked: AskedModels = field(default_factory=lambda: AskedModels({}))  # the models that can be asked for text
    served: Mapping[str, ServedModel] = field(default_factory=dict[str, ServedModel])  # that take seats, by name
    _recent: deque[str | None] = field(default_factory=lambda: deque(maxlen=100))
    # by environment: how many plays it has room for (and by the copies of each), and how they end
    _world_places: dict[tuple[int, int], Places] = field(default_factory=dict[tuple[int, int], Places])
    _episode_counts: dict[int, EpisodeCounts] = field(default_factory=dict[int, EpisodeCounts])

    def __post_init__(self) -> None:
        self.playing = PlayLimit(self.config.concurrency)

    async def play_group(
        self, task: Task, slot: int, size: int, params: SamplingParams, label: str, *,
        sampler_for: SamplerFor | None = None, blame: bool = True, search: bool = True,
    ) -> Group:  # fmt: skip
        """Plays a task `size` times; each play is seeded by the run's seed, `label`, the task and its number.
        `sampler_for` returns the sampler of each play, where that is not the engine. Without `blame`, an action that
        breaks the world is a failure of the world. Without `search`, an agent that looks ahead does not."""
        check_task(task)
        seeds = [seed_of(self.seed, label, task.id, n) for n in range(size)]
        plays = [
            self.play_episode(task, replace(params, seed=seed), f"{label}/{n}", sampler_for, blame, search=search)
            for n, seed in enumerate(seeds)
        ]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(p) for p in plays]
        return Group(slot, task, tuple(t.result() for t in running))

    async def play_episode(
        self,
        task: Task,
        params: SamplingParams,
        label: str,
        sampler_for: SamplerFor | None = None,
        blame: bool = True,
        course: OwnCourse | None = None,
        search: bool = True,
    ) -> Episode:
        """Plays a task once. Only here does an exception of an environment become data (`Episode.error`)."""
        if search and course is None and isinstance(self.agent, LooksAhead):
            course = self.agent.course(self, task)
        async with self._places(task, 0 if course is None else course.copies).taken(task), self.playing:
            for attempt in range(self.config.retries + 1):
                began, failed, played = time.monotonic(), None, Attempt()
                try:
                    await contained(self._play(task, params, label, sampler_for, blame, course, played))
                except (ConfigError, RankError):
                    raise
                except (Exception, SystemExit, asyncio.CancelledError) as error:  # a world that exits ends its own play
                    if isinstance(error, asyncio.CancelledError) and cancelled():
                        raise
                    failed = error
                episode = played.episode(f"{label}-{task.id}", task, time.monotonic() - began, failed)
                if isinstance(failed, WorldError) or episode.error is None or attempt == self.config.retries:
                    self.count(episode)
                    if isinstance(failed, WorldError):
                        raise failed
                    return episode
        raise AssertionError("unreachable: the last attempt returns")

    def _places(self, task: Task, copies: int) -> Places:
        world = world_of(self.family, task)
        if (places := self._world_places.get(key := (id(world), copies))) is None:
            places = self._world_places[key] = Places.of(world, self.config.concurrency, copies)
        return places

    def _blame(self, task: Task, world: EnvFamily) -> Blame:
        counts = self._episode_counts.setdefault(id(world), EpisodeCounts())
        lowest = world.lowest_reward if isinstance(world, HasLowestReward) else LOWEST
        alone = partial(self.family.make_alone, task) if isinstance(self.family, PlaysElsewhere) else None
        return Blame(partial(self.family.make, task), self._call, lowest, counts, alone)

    async def _call(self, method: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        return await call_env(method, self.config.limits, self.timeline, *arguments)

    async def _play(
        self, task: Task, params: SamplingParams, label: str, sampler_for: SamplerFor | None, find_cause: bool,
        course: OwnCourse | None, attempt: Attempt,
    ) -> None:  # fmt: skip
        """Plays a task, puts its trajectories into `attempt`, and closes its environment. A failure to close leaves the
        episode as it is: its rewards are known by then, and an agent must not choose which of its episodes count."""
        world, make = world_of(self.family, task), partial(self.family.make, task)
        if isinstance(self.family, PlaysElsewhere):
            await self._call(self.family.prepare, task)
        env = make() if course is None else await course.open(make, self._call)
        sampler = self.sampler if sampler_for is None else sampler_for(env, label)
        limits = replace(self.config.limits, turns=max_turns(sampler, self.config.limits.turns))
        blame = self._blame(task, world)
        seats: dict[str, Seat] = {}
        try:
            for name in (names := seats_of_world(world)):
                model, episode = self.model_of(label, name, names), f"{label}-{task.id}"
                seats[name] = (course or self).seat(self._agent_context(name, model, sampler, params, episode))
                give_browser(env, seats[name])
            played = await play(env, seats, limits, self.timeline, task.env, blame if find_cause else None, course)
            if blobs := blobs_of(env):
                self.on_blobs(blobs)
        except BaseException as error:
            if not (isinstance(error, asyncio.CancelledError) and cancelled()):
                attempt.keep_turns(seats, env, self.on_blobs)
            if not blame.closed:
                await close(env, self._call)  # its error would hide this one
            raise
        finally:
            await close_seats(seats.values())
        attempt.trajectories, attempt.complete, attempt.failure = played, True, blame.failure
        if not blame.closed:
            await self._call(env.close)

    def seat(self, context: AgentContext) -> Seat:
        """Returns a new seat. A model behind an endpoint is asked for its turns, unless the play's samples come from
        elsewhere, as an expert takes all seats."""
        served, sampler = self.served.get(context.params.model), context.sampler
        if served is not None and (sampler is self.sampler or isinstance(sampler, DrawsAll)):
            return AskedSeat.of(context, served.max_tokens)
        return self.agent.seat(context)

    def _agent_context(self, name: str, model: str, sampler: Any, params: SamplingParams, episode: str) -> AgentContext:
        """Returns the context of a seat. Each has a sampling seed of its own, so that seats do not sample alike."""
        seeded = replace(params, model=model, seed=params.seed if name == "agent" else seed_of(params.seed, name))
        return AgentContext(
            name=name, renderer=self.renderer, sampler=sampler, params=seeded, max_context=self.max_context,
            trainable=model in self.trained, trained=self.trained, models=self.asked.of_episode(episode),
        )  # fmt: skip

    def count(self, episode: Episode, *, again: bool = False) -> None:
        """Counts an episode; `again` where it was counted when it ended, and then its reward failed."""
        failure, before = episode.error or episode.close_error, episode.close_error
        if again and before in self._recent:
            self._recent.remove(before)
        self._recent.append(failure)
        self.errors += failure is not None and not (again and before)
        self.on_episode(episode)
        require_few_failures(self._recent, self.config.max_error_rate, episode)
