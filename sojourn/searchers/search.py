"""An agent that searches before it acts, and its seats."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, NamedTuple, cast

import numpy as np

from sojourn.abilities import DrawsAll, Forkable, ForkableSeat, max_turns
from sojourn.agents.plain import Plain
from sojourn.agents.told import require_base
from sojourn.blame import EnvCall
from sojourn.config.fields import Kind, Range
from sojourn.envs.replay_fork import make_forkable
from sojourn.errors import ActionError, ConfigError
from sojourn.protocols import Agent, AgentContext, Env, Reward, Sampler, Seat
from sojourn.rewards.native import Native
from sojourn.rollout.play import Moment, play
from sojourn.rollout.runner import Runner
from sojourn.search_cost import PLANNED, SEARCH_TOKENS, SEARCH_TURNS
from sojourn.searchers.ahead import Ahead, Position, prompt_before
from sojourn.types import (
    Considered,
    Ending,
    FloatArray,
    Message,
    Observation,
    Prompt,
    Sample,
    SamplingParams,
    Task,
    Trajectory,
    Turn,
)


@dataclass(frozen=True, kw_only=True)
class Search:
    """Base of agents that search: before it acts, each seat tries actions of the agent `base` in copies of the play.

    `tokens` bounds how many tokens a seat may sample in a play, tried ones included
    (0: no bound); then it acts as `base` does. At most `copies` of a play are open at once.
    """

    base: Annotated[Agent, Kind("agent")] = field(default_factory=Plain)
    tokens: Annotated[int, Range(0)] = 0
    copies: Annotated[int, Range(1)] = 8

    def __post_init__(self) -> None:
        if isinstance(self.base, Search):
            raise ValueError("base searches, too: name the agent that is to act, such as plain")
        require_base(self.base)

    @property
    def judge(self) -> Reward | None:
        """Returns what judges simulated plays, None where nothing does."""
        return None

    @property
    def unsampled(self) -> bool:
        return False

    def seat(self, context: AgentContext) -> Seat:
        """Returns a seat that does not search, where there is no play to copy."""
        return self.base.seat(context)

    def course(self, runner: Runner, task: Task) -> SearchedPlay:
        return SearchedPlay(self, runner, task)

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        """Returns the seat's next turns, one or more, from what was tried; none where nothing came of it."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class JudgedSearch(Search):
    """Base of agents that search by what plays are worth.

    `reward` judges simulated plays.
    """

    reward: Annotated[Reward, Kind("reward")] = field(default_factory=Native)

    @property
    def judge(self) -> Reward:
        return self.reward


class TriedPlay(NamedTuple):
    """A play that was tried to its end, in a copy that began at the position `root`."""

    end: Position
    root: Position


@dataclass
class SearchedPlay:
    """One play of a task by a runner, whose seats know each other and try actions in copies of it.

    Where the samples are not drawn, such as those of an expert or a record, its seats are those of the base. With
    `keeps`, images that copies show are recorded. `mistakes` and `known` are those of `Ahead`. `trials` are the
    searches of the present attempt, in their order.
    """

    search: Search
    runner: Runner
    task: Task
    keeps: bool = False
    mistakes: Sequence[str] = ()
    known: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    seats: dict[str, SearchSeat] = field(default_factory=dict[str, "SearchSeat"])
    trials: list[Ahead] = field(default_factory=list[Ahead])
    env: Forkable = field(init=False)
    call: EnvCall = field(init=False)
    places: asyncio.Semaphore = field(init=False)

    @property
    def start(self) -> Moment | None:
        return None

    @property
    def copies(self) -> int:
        return self.search.copies

    async def open(self, make: Callable[[], Env], call: EnvCall) -> Env:
        self.call, self.seats, self.trials = call, {}, []
        self.places = asyncio.Semaphore(self.search.copies)
        env = make_forkable(self.runner.family, self.task)
        self.env = cast(Forkable, env)
        return env

    def seat(self, context: AgentContext) -> Seat:
        if not (context.sampler is self.runner.sampler or isinstance(context.sampler, DrawsAll)):
            return self.search.base.seat(context)
        sampler = PlannedSampler(context.sampler)
        base = self.search.base.seat(replace(context, sampler=sampler))
        self.seats[context.name] = SearchSeat(self, context, base, sampler)
        return self.seats[context.name]

    async def before_turn(self, moment: Moment) -> None:
        """Does nothing: a seat searches when it is to act."""

    async def ended(self) -> None:
        """Does nothing."""

    def tried(self) -> list[TriedPlay]:
        """Returns the plays that the searches tried to their ends, or left after a mistake, in the order in which they
        began."""
        return [
            TriedPlay(end, ahead.root)
            for ahead in self.trials
            for _, end in sorted([*ahead.ends, *ahead.wrong], key=lambda numbered: numbered[0])
        ]

    def ahead(self, name: str, observation: Observation, seen: Observation, state: str | None) -> Ahead:
        """Returns what a seat may try where the world shows an observation, and the seat is shown `seen`."""
        bases = {name: seat.forkable for name, seat in self.seats.items()}
        turns, seat = sum(seat.acted for seat in self.seats.values()), self.seats[name]
        root = Position(
            Moment(observation, seen, turns),
            bases,
            {name: base.fork().finish(Ending.TURNS) for name, base in bases.items()},
            state=state,
        )
        limits, context = self.runner.config.limits, seat.context
        limits = replace(limits, turns=max_turns(context.sampler, limits.turns))
        ahead = Ahead(
            name=name,
            root=root,
            task=self.task,
            env=self.env,
            call=self.call,
            play=partial(play, limits=limits, timeline=self.runner.timeline, world=self.task.env),
            contexts={name: seat.context for name, seat in self.seats.items()},
            reward=self.search.judge,
            places=self.places,
            budget=self.search.tokens - seat.spent if self.search.tokens else math.inf,
            seed=turns,
            on_blobs=self.runner.on_blobs if self.keeps else None,
            mistakes=self.mistakes,
            known=self.known,
            critic=self.runner.critic,
        )
        self.trials.append(ahead)
        return ahead


@dataclass
class SearchSeat:
    """A participant of one episode, which has its seat `base` say what the search found best."""

    play: SearchedPlay
    context: AgentContext
    base: Seat
    sampler: PlannedSampler
    acted: int = 0
    spent: int = 0
    shown: Observation | None = None  # by the world, last
    refusal: Observation | None = None  # what it was shown instead
    considered: dict[int, Sequence[Considered]] = field(default_factory=dict[int, "Sequence[Considered]"])  # by turn

    @property
    def ends_when_malformed(self) -> bool:
        return self.base.ends_when_malformed

    @property
    def forkable(self) -> ForkableSeat:
        if not isinstance(self.base, ForkableSeat):
            raise ConfigError(
                f"the seats of {type(self.play.search.base).__name__} have no fork(), so that nothing can be tried: "
                "choose another base, such as plain"
            )
        return self.base

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        if observation is not self.refusal:  # after a refusal the world shows nothing new
            self.shown = observation
        if self.sampler.plan and not await self._leads_on(observation):
            self.sampler.plan = []
        found = await self._search(observation, state) if not self.sampler.plan and self._may_search else {}
        number, planned = self.sampler.turns, bool(self.sampler.plan)
        try:
            return await self.base.act(observation, state)
        finally:
            self.acted += 1
            if self.sampler.turns > number:
                self.spent += 0 if planned else self.sampler.sampled
                self.base.add_reward(0.0, {**found, **({PLANNED: 1.0} if planned else {})})

    async def _leads_on(self, observation: Observation) -> bool:
        """Returns whether the next planned turn was sampled after the prompt that the seat has now: not where the world
        shows something else than it did in the copy."""
        past, planned = self.forkable.fork().finish(Ending.TURNS), self.sampler.plan[0]
        prompt = await prompt_before(self.forkable, self.context, observation)
        if prompt is None or prompt.images[len(prompt.images) - len(planned.images) :] != planned.images:
            return False
        expected = replace(past, turns=(*past.turns, planned)).prompt(len(past.turns))
        return np.array_equal(prompt.tokens, expected)

    @property
    def _may_search(self) -> bool:
        return not self.play.search.tokens or self.spent < self.play.search.tokens

    async def _search(self, observation: Observation, state: str | None) -> dict[str, float]:
        """Plans the next turns, and returns what that took."""
        ahead = self.play.ahead(self.context.name, self.shown or observation, observation, state)
        self.sampler.plan = list(await self.play.search.search(ahead))
        self.spent += ahead.tokens
        self.considered[self.sampler.turns] = ahead.considered
        failed = {"search_failures": float(ahead.failures)} if ahead.failures else {}
        return {SEARCH_TOKENS: float(ahead.tokens), SEARCH_TURNS: float(ahead.turns), **failed, **ahead.info}

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        self.base.add_reward(reward, info)

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        self.refusal = refusal = self.base.refuse(error, observation)
        return refusal

    def finish(self, ending: Ending) -> Trajectory:
        trajectory = self.base.finish(ending)
        turns = [
            replace(turn, considered=tuple(self.considered.get(number, ())))
            for number, turn in enumerate(trajectory.turns)
        ]
        return replace(trajectory, turns=tuple(turns))


@dataclass
class PlannedSampler:
    """Returns the samples of turns that a search found, one by one, and else samples. `turns` counts both."""

    sampler: Sampler
    plan: list[Turn] = field(default_factory=list[Turn])
    turns: int = 0
    sampled: int = 0  # tokens of the last one

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        if self.plan:
            sample = self.plan.pop(0).sample
        else:
            sample = await self.sampler.sample(prompt, params)
        self.turns, self.sampled = self.turns + 1, len(sample.tokens)
        return sample

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.sampler.score(prompt)

    async def close(self) -> None:
        """Does nothing: the sampler is the run's."""
