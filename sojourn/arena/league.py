"""Plays every two of several operators against each other, in the seats of a world of several, and rates them all."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sojourn.abilities import capacity
from sojourn.arena.match import ObservedFamily, runner_of
from sojourn.arena.operators import Operator
from sojourn.arena.ratings import GameResult, ratings
from sojourn.errors import ConfigError
from sojourn.intervals import Estimate, mean
from sojourn.protocols import AgentContext, EnvFamily
from sojourn.rewards.native import Native
from sojourn.rewards.reward_cache import score_group
from sojourn.rollout.limits import Limits
from sojourn.rollout.world import seats_of, world_of
from sojourn.seeds import seed_of
from sojourn.types import Episode, Group, SamplingParams, Task

CONCURRENCY = 64  # games at once
DRAW = 1e-9  # returns that differ by less are equal


class Game(NamedTuple):
    """A game that was played: the numbers of the task and of both operators, the first one's seat, and the returns of
    both, which are None where the world or an operator failed."""

    task: int
    first: int
    second: int
    seat: str
    returns: tuple[float, float] | None
    error: str | None = None

    @property
    def points(self) -> float | None:
        """Returns the points of the first: 1 for the higher return, 0.5 for an equal one."""
        if self.returns is None:
            return None
        one, other = self.returns
        return 0.5 if abs(one - other) < DRAW else float(one > other)


class Standing(NamedTuple):
    """Tells how an operator did: its rating, its share of the points, its mean return, and how many games failed."""

    name: str
    rating: Estimate
    points: float
    reward: Estimate
    failed: int


@dataclass
class League:
    """Plays each task once for each two operators and each seat: one of them has that seat, the other one all others;
    of three seats or more, also the other way round, as it is not the same to be alone. Who has the higher return wins;
    several seats of one operator have the mean of theirs."""

    family: EnvFamily
    operators: Sequence[Operator]
    limits: Limits
    seed: int = 0

    def check(self, tasks: Sequence[Task]) -> None:
        """Raises `ConfigError` where nobody could meet anybody."""
        if len(self.operators) < 2:
            raise ConfigError(f"{len(self.operators)} operators: expected two or more, which meet each other")
        for task in tasks:
            seats = seats_of(self.family, task)
            if len(seats) < 2:
                raise ConfigError(
                    f"this environment has only the seat {', '.join(seats)}, so that operators cannot meet in it: let "
                    "them take all its seats if it can (opponent=self), or compare them side by side with sojourn arena"
                )

    def games(self, tasks: Sequence[Task]) -> int:
        """Returns how many games are played."""
        return sum(len(self._seatings(task)) for task in tasks)

    def _seatings(self, task: Task) -> list[tuple[int, int, str]]:
        """Returns who has which seat against whom, by the numbers of both."""
        seats = seats_of(self.family, task)
        pairs = itertools.combinations if len(seats) == 2 else itertools.permutations
        return [(first, second, seat) for first, second in pairs(range(len(self.operators)), 2) for seat in seats]

    async def play(self, tasks: Sequence[Task], on_game: Callable[[Game], None] = lambda game: None) -> list[Game]:
        """Returns all games. A failure ends its own game alone."""
        room = asyncio.Semaphore(min([CONCURRENCY, *(capacity(world_of(self.family, one), 1 << 30) for one in tasks)]))

        async def played(number: int, first: int, second: int, seat: str) -> Game:
            async with room:
                game = await self._game(number, tasks[number], first, second, seat)
            on_game(game)
            return game

        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(played(number, first, second, seat))
                for number, task in enumerate(tasks)
                for first, second, seat in self._seatings(task)
            ]
        return [game.result() for game in running]

    async def _game(self, number: int, task: Task, first: int, second: int, seat: str) -> Game:
        one, other = self.operators[first], self.operators[second]
        family = ObservedFamily(self.family)
        seated = {name: one if name == seat else other for name in seats_of(self.family, task)}
        runner = runner_of(family, SeatedOperators(seated, family), self.limits, self.seed)
        params = SamplingParams(max_tokens=1, seed=seed_of(self.seed, "league", task.id, one.name, other.name, seat))
        episode = await runner.play_episode(task, params, f"league-{one.name}-{other.name}/{number}")
        if episode.error is not None:
            return Game(number, first, second, seat, None, episode.error)
        return Game(number, first, second, seat, await _returns(episode, seat))


async def _returns(episode: Episode, seat: str) -> tuple[float, float]:
    """Returns the return of one seat, and the mean of all others."""
    [scores] = [await score_group(Native(), Group(0, episode.task, (episode,)))]
    returns: dict[bool, list[float]] = {True: [], False: []}
    for trajectory, score in zip(episode.trajectories, scores, strict=True):
        returns[trajectory.agent == seat].append(score.total)
    mine, theirs = (sum(some) / max(len(some), 1) for some in (returns[True], returns[False]))
    return mine, theirs


@dataclass(frozen=True)
class SeatedOperators:
    """The agent of a game's runner: it gives each seat to its operator."""

    by_seat: Mapping[str, Operator]
    family: ObservedFamily

    def seat(self, context: AgentContext) -> Any:
        return self.by_seat[context.name].seat(context, self.family.env)


def standings(names: Sequence[str], games: Sequence[Game], seed: int = 0) -> list[Standing]:
    """Returns what each operator came to, the best first."""
    ended = [GameResult(game.first, game.second, game.points, game.task) for game in games if game.points is not None]
    rated = ratings(len(names), ended, seed)
    found: list[Standing] = []
    for player, name in enumerate(names):
        won = [game.points if game.first == player else 1 - game.points for game in ended if player in game[:2]]
        own = [game for game in games if player in (game.first, game.second)]
        returned = [(game.returns[game.second == player], game.task) for game in own if game.returns is not None]
        reward = mean([value for value, _ in returned], [task for _, task in returned])
        points, failed = sum(won) / len(won) if won else math.nan, len(own) - len(returned)
        found.append(Standing(name, rated[player], points, reward, failed))
    return sorted(found, key=lambda one: -one.rating.mean)
