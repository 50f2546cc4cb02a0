"""Plays the same tasks and seeds with every operator, each in an environment of its own, in lock-step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from sojourn.abilities import HasCapacity, HasLowestReward, HasSeats, HasWorlds, capacity
from sojourn.arena.lockstep import LockStep, LockStepSeat, Watcher
from sojourn.arena.operators import Operator
from sojourn.errors import ConfigError
from sojourn.protocols import Agent, AgentContext, EnvFamily
from sojourn.rewards.native import Native
from sojourn.rewards.reward_cache import score_group
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.rollout.world import seats_of, world_of
from sojourn.seeds import seed_of
from sojourn.types import Episode, Group, SamplingParams, Score, Task


class TaskResult(NamedTuple):
    """The episodes of one task and their scores, in the order of the operators."""

    number: int
    task: Task
    groups: tuple[Group, ...]
    scores: tuple[list[Score], ...]

    @property
    def episodes(self) -> tuple[Episode, ...]:
        return tuple(group.episodes[0] for group in self.groups)


@dataclass
class Match:
    """Plays tasks of one environment with several operators.

    `seat` names the seat of the operators in an environment with several; `others` plays the remaining seats.
    """

    family: EnvFamily
    operators: Sequence[Operator]
    limits: Limits
    watcher: Watcher
    seed: int = 0
    seat: str = ""
    others: Operator | None = None
    on_blobs: Callable[[Mapping[str, bytes]], None] = lambda blobs: None

    def check(self, tasks: Sequence[Task]) -> None:
        """Raises ConfigError for a seat that is unknown or left empty, and for too many environments at once."""
        for task in tasks:
            self._seat(task)
            allowed = capacity(world_of(self.family, task), len(self.operators))
            if allowed < len(self.operators):
                raise ConfigError(
                    f"{len(self.operators)} operators need as many environments at once, but this one allows "
                    f"{allowed}: name fewer operators, or raise its capacity if it has such a field"
                )

    async def play_task(self, number: int, task: Task) -> TaskResult:
        """Plays one task with all operators. A failure ends the episode of its operator alone."""
        lockstep = LockStep([operator.name for operator in self.operators], self.watcher)
        async with asyncio.TaskGroup() as group:
            group.create_task(lockstep.conduct())
            running = [group.create_task(self._play(operator, task, number, lockstep)) for operator in self.operators]
        groups = tuple(Group(number, task, (play.result(),)) for play in running)
        return TaskResult(number, task, groups, tuple([await score_group(Native(), group) for group in groups]))

    async def _play(self, operator: Operator, task: Task, number: int, lockstep: LockStep) -> Episode:
        family = ObservedFamily(self.family)
        agent = MatchAgent(operator, self.others, family, lockstep, self._seat(task))
        runner = runner_of(family, agent, self.limits, self.seed, self.on_blobs)
        params = SamplingParams(max_tokens=1, seed=seed_of(self.seed, "arena", task.id))
        episode = await runner.play_episode(task, params, f"arena-{operator.name}/{number}")
        ended = episode.error or next(str(t.ending) for t in episode.trajectories if t.trainable)
        lockstep.leave(operator.name, ended, episode.error is not None)
        return replace(episode, seconds=agent.lockstep_seat.seconds if agent.lockstep_seat is not None else 0.0)

    def _seat(self, task: Task) -> str:
        seats = seats_of(self.family, task)
        seat = self.seat or seats[0]
        if seat not in seats:
            raise ConfigError(f"--seat {seat}: this environment has the seats {', '.join(seats)}")
        if len(seats) > 1 and not (self.seat and self.others):
            raise ConfigError(
                f"this environment has the seats {', '.join(seats)}: name the operators' seat (--seat {seats[0]}) "
                "and the operator of the other seats (--others random), or let the environment play them if it can "
                "(opponent=...)"
            )
        if len(seats) == 1 and self.others:
            raise ConfigError("--others: this environment has only one seat: leave --others out")
        return seat


@dataclass
class ObservedFamily:
    """An environment family that keeps the environment it made last, because some operators (an expert) act on it."""

    family: EnvFamily
    env: Any = None

    def __post_init__(self) -> None:
        family = self.family
        if isinstance(family, HasSeats):
            self.seats = family.seats
        if isinstance(family, HasCapacity):
            self.capacity = family.capacity
        if isinstance(family, HasLowestReward):
            self.lowest_reward = family.lowest_reward
        if isinstance(family, HasWorlds):
            self.worlds, self.world_of = family.worlds, family.world_of

    def tasks(self, split: str) -> Sequence[Task]:
        return self.family.tasks(split)

    def make(self, task: Task) -> Any:
        self.env = self.family.make(task)
        return self.env


def runner_of(
    family: ObservedFamily,
    agent: Agent,
    limits: Limits,
    seed: int,
    on_blobs: Callable[[Mapping[str, bytes]], None] = lambda blobs: None,
) -> Runner:
    """Returns what plays episodes of operators, each of which has a renderer and a sampler of its own, if it needs
    them. A failed episode is not tried again."""
    rollout, unused = Rollout(limits=limits, retries=0, max_error_rate=1.0), cast(Any, None)
    return Runner(rollout, cast(EnvFamily, family), agent, unused, unused, 0, seed, on_blobs=on_blobs)


@dataclass
class MatchAgent:
    """The agent of a match's runner: seats the operator in lock-step with the others, and fills the remaining seats."""

    operator: Operator
    others: Operator | None
    family: ObservedFamily
    lockstep: LockStep
    seat_of_operator: str
    lockstep_seat: LockStepSeat | None = field(default=None)

    def seat(self, context: AgentContext) -> Any:
        if context.name != self.seat_of_operator:
            assert self.others is not None, "check() comes first"
            return self.others.seat(replace(context, trainable=False), self.family.env)
        self.lockstep_seat = LockStepSeat(
            self.operator.seat(context, self.family.env), self.operator.name, self.lockstep
        )
        return self.lockstep_seat
