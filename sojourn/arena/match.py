"""The same tasks and seeds for every operator, each in a world of its own, turn by turn together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from sojourn.arena.lockstep import LockStep, LockStepSeat, Watcher
from sojourn.arena.operators import Operator
from sojourn.errors import ConfigError
from sojourn.protocols import AgentContext, EnvFamily, HasCapacity, HasLowestReward, HasSeats, HasWorlds
from sojourn.rewards.native import Native
from sojourn.rewards.reward_cache import judged
from sojourn.rollout.play import Limits
from sojourn.rollout.runner import Rollout, Runner, seed_of
from sojourn.rollout.world import seats_of, world_of
from sojourn.types import Episode, Group, SamplingParams, Score, Task


class TaskResult(NamedTuple):
    """One task as all operators played it, in their order."""

    number: int
    task: Task
    groups: tuple[Group, ...]
    scores: tuple[list[Score], ...]

    @property
    def episodes(self) -> tuple[Episode, ...]:
        return tuple(group.episodes[0] for group in self.groups)


@dataclass
class Match:
    """Operators in one world. `seat` is where they sit, `others` fills the seats that are left, if any."""

    family: EnvFamily
    operators: Sequence[Operator]
    limits: Limits
    watcher: Watcher
    seed: int = 0
    seat: str = ""
    others: Operator | None = None
    on_blobs: Callable[[Mapping[str, bytes]], None] = lambda blobs: None

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuses what cannot be played: a seat that is not there or left empty, too many plays for a world."""
        for task in tasks:
            self._seat(task)
            room = getattr(world_of(self.family, task), "capacity", len(self.operators))
            if room < len(self.operators):
                raise ConfigError(
                    f"{len(self.operators)} operators play at once, but this world holds {room} plays at a time: name "
                    "fewer operators, or raise its capacity where it has such a field"
                )

    async def play_task(self, number: int, task: Task) -> TaskResult:
        """One task; an operator that fails ends its own episode alone."""
        rounds = LockStep([operator.name for operator in self.operators], self.watcher)
        async with asyncio.TaskGroup() as group:
            group.create_task(rounds.conduct())
            running = [group.create_task(self._play(operator, task, number, rounds)) for operator in self.operators]
        groups = tuple(Group(number, task, (play.result(),)) for play in running)
        return TaskResult(number, task, groups, tuple([await judged(Native(), group) for group in groups]))

    async def _play(self, operator: Operator, task: Task, number: int, rounds: LockStep) -> Episode:
        held = ObservedFamily(self.family)
        table = MatchAgent(operator, self.others, held, rounds, self._seat(task))
        rollout = Rollout(limits=self.limits, retries=0, max_error_rate=1.0)
        nobody = cast(Any, None)  # each operator brings what it needs
        runner = Runner(rollout, cast(EnvFamily, held), table, nobody, nobody, 0, self.seed, on_blobs=self.on_blobs)
        params = SamplingParams(max_tokens=1, seed=seed_of(self.seed, "arena", task.id))
        episode = await runner.episode(task, params, f"arena-{operator.name}/{number}")
        ended = episode.error or next(str(t.ending) for t in episode.trajectories if t.trainable)
        rounds.leave(operator.name, ended, episode.error is not None)
        return replace(episode, seconds=table.paced.seconds if table.paced is not None else 0.0)

    def _seat(self, task: Task) -> str:
        seats = seats_of(self.family, task)
        seat = self.seat or seats[0]
        if seat not in seats:
            raise ConfigError(f"--seat {seat}: this world has the seats {', '.join(seats)}")
        if len(seats) > 1 and not (self.seat and self.others):
            raise ConfigError(
                f"this world has the seats {', '.join(seats)}: say where the operators sit (--seat {seats[0]}) and "
                "who takes the others (--others random), or let the world play them where it can (opponent=...)"
            )
        if len(seats) == 1 and self.others:
            raise ConfigError("--others: this world has one seat alone, so nobody else plays: leave it out")
        return seat


@dataclass
class ObservedFamily:
    """A family whose last play is at hand: an operator may sit beside its own world, as an expert does."""

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


@dataclass
class MatchAgent:
    """In the agent's place of a runner: seats the operator, in step with the others, and those who play beside it."""

    operator: Operator
    others: Operator | None
    held: ObservedFamily
    rounds: LockStep
    seat_of_operator: str
    paced: LockStepSeat | None = field(default=None)

    def seat(self, context: AgentContext) -> Any:
        if context.name != self.seat_of_operator:
            assert self.others is not None, "check() comes first"
            return self.others.seat(replace(context, trainable=False), self.held.env)
        self.paced = LockStepSeat(self.operator.seat(context, self.held.env), self.operator.name, self.rounds)
        return self.paced
