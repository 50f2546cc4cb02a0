"""Keeps what was observed of each task that a curriculum may draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.curricula.task_features import features_of
from sojourn.errors import ConfigError
from sojourn.types import Group, IntArray, Score, Task

Array = NDArray[np.float64]
RANDOM_WEIGHTS = 2**62  # tells the random numbers of weights from those of draws, which have the number of a slot there
UNTAGGED = "untagged"  # what tasks without tags are called where outcomes are told by tag
MAX_KINDS = 24
MAX_LISTED = 512  # tasks that are made for metrics alone, as some worlds take milliseconds for one
RECENT = 8  # groups of each task that are remembered one by one


class Outcome(NamedTuple):
    """Says how a group ended: its number of episodes, the fraction of its trajectories that succeeded, the mean and the
    greatest of their rewards, without penalties and shaping, and their mean distance from their mean; and how many
    tokens were sampled, those of failed episodes not counted."""

    episodes: int
    success: float
    reward: float
    best: float
    spread: float
    tokens: int


def outcome(group: Group, scores: Sequence[Score]) -> Outcome | None:
    """Returns how a group ended; None where nothing is known, as all of its episodes failed."""
    if not scores:
        return None
    rewards = [score.result for score in scores]
    successes = [trajectory.success for trajectory in group.trajectories]
    mean = float(np.mean(rewards))
    spread = float(np.mean(np.abs(np.array(rewards) - mean)))
    tokens = sum(len(turn.sample.tokens) for trajectory in group.trajectories for turn in trajectory.turns)
    return Outcome(len(set(group.owners)), float(np.mean(successes)), mean, max(rewards), spread, tokens)


class Table:
    """One number per task in each array, all (n,), and the success rates and numbers of episodes of the last `RECENT`
    groups of each, newest last: (n, RECENT). NaN stands where nothing was observed, and -1 in `seen`."""

    def __init__(self, count: int) -> None:
        self.episodes: Array = np.zeros(count)
        self.successes: Array = np.zeros(count)  # expected number of successful episodes: rate times episodes, summed
        self.rewards: Array = np.zeros(count)  # sum over the episodes
        self.tokens: Array = np.zeros(count)  # that were sampled in them
        self.best: Array = np.full(count, np.nan)  # the greatest reward so far
        self.last_reward: Array = np.full(count, np.nan)  # mean of the newest group
        self.spread: Array = np.full(count, np.nan)  # of the rewards of the newest group
        self.seen: Array = np.full(count, -1.0)  # the clock at the newest group
        self.recent: Array = np.full((count, RECENT), np.nan)
        self.recent_episodes: Array = np.zeros((count, RECENT))

    def add(self, index: int, result: Outcome, clock: int) -> None:
        self.episodes[index] += result.episodes
        self.successes[index] += result.episodes * result.success
        self.rewards[index] += result.episodes * result.reward
        self.tokens[index] += result.tokens
        self.best[index] = np.fmax(self.best[index], result.best)
        self.last_reward[index] = result.reward
        self.spread[index] = result.spread
        self.seen[index] = clock
        self.recent[index] = [*self.recent[index, 1:], result.success]
        self.recent_episodes[index] = [*self.recent_episodes[index, 1:], result.episodes]

    def copy(self, to: IntArray, of: IntArray) -> None:
        """Makes the rows numbered `to` the same as those numbered `of`."""
        for column in vars(self).values():
            column[to] = column[of]

    def rows(self, kept: IntArray, new: int) -> Table:
        """Returns the table of the tasks numbered `kept` of these, followed by `new` tasks that were never played."""
        table = Table(new)
        for name, column in vars(table).items():
            setattr(table, name, np.concatenate([getattr(self, name)[kept], column]))
        return table


@dataclass
class TaskHistory:
    """Keeps what was observed of the tasks of a pool: the first n tasks of a split.

    `clock` counts observations, one for each step. `tests` has, for each tag and each world, the number of episodes and
    of successes in the newest evaluation. Only groups that the policy played count: demonstrations say nothing of it.

    A split may list a task several times, as a mixture does that repeats the tasks of worlds with fewer. What is
    observed of it counts for each of its numbers that was drawn; the others are not known to be the same task, as
    tasks are made when they are drawn.
    """

    pool: Sequence[Task]
    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        self.clock = 0
        self.of = Table(self.count)
        self.tests: dict[str, tuple[float, float]] = {}
        self._index: dict[str, int] = {}  # the first number that was drawn of each task, by its id
        self._first: dict[int, int] = {}  # for each number that was drawn, in order, the first of the same task

    @cached_property
    def tasks(self) -> list[Task]:
        """Returns every task of the pool, made."""
        return [self.pool[index] for index in range(self.count)]

    @cached_property
    def labels(self) -> list[tuple[str, ...]]:
        """Returns the world and the tags of each task."""
        return [labels_of(task) for task in self.tasks]

    @cached_property
    def kinds(self) -> dict[str, IntArray]:
        """Returns the numbers of the tasks of each world and tag that some tasks of the pool have and others do not, of
        at most `MAX_KINDS`, the most common. Pools of more than `MAX_LISTED` tasks are only looked through where the
        curriculum has made them all."""
        if self.count > MAX_LISTED and "tasks" not in vars(self):
            return {}
        found = Counter(label for labels in self.labels for label in set(labels))
        common = sorted(label for label, count in found.most_common(MAX_KINDS) if 1 < count < self.count)
        return {label: np.array([n for n, of in enumerate(self.labels) if label in of]) for label in common}

    @cached_property
    def features(self) -> Array:
        """Returns what may be known of each task before it is played: (n, k), see `features_of`."""
        return features_of(self.tasks, self.labels)

    def rng(self) -> np.random.Generator:
        """Returns random numbers that depend on the seed and the clock alone, so that a resumed run draws the same."""
        return np.random.default_rng([self.seed, self.clock, RANDOM_WEIGHTS])

    @property
    def success(self) -> Array:
        """Returns the success rate of each task over all its episodes, NaN where there are none: (n,)."""
        return np.divide(self.of.successes, self.of.episodes, out=np.full(self.count, np.nan), where=self.seen)

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Returns whether each task was played: (n,)."""
        return self.of.episodes > 0

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Returns whether each task was played, once for a task with several numbers, so that what was observed of
        several tasks can be added up: (n,)."""
        again = [number for number, first in self._first.items() if number != first]
        counted = self.seen
        counted[again] = False
        return counted

    @property
    def age(self) -> Array:
        """Returns how many observations ago each task was played last, `clock` + 1 where never: (n,)."""
        return self.clock - self.of.seen

    def posterior(self, prior: float, decay: float) -> tuple[Array, Array]:
        """Returns the parameters of a Beta distribution of each task's success rate: `prior` each, plus the successes
        and the failures of its last `RECENT` groups, in which every older group counts `decay` times as much: 2 (n,).
        """
        counts = self.of.recent_episodes * decay ** np.arange(RECENT - 1, -1, -1)
        rates = np.nan_to_num(self.of.recent)
        return prior + (counts * rates).sum(1), prior + (counts * (1 - rates)).sum(1)

    def expected(self, prior: float, decay: float) -> Array:
        """Returns the mean of that distribution for each task: (n,)."""
        wins, losses = self.posterior(prior, decay)
        return wins / (wins + losses)

    def drawn(self, index: int) -> Task:
        """Returns a task that is to be played, which is known by its id from then on."""
        task = self.pool[index]
        if index not in self._first:
            self._first[index] = self._index.setdefault(task.id, index)
        return task

    def of_pool(self, pool: Sequence[Task], kept: IntArray) -> TaskHistory:
        """Returns the history of another pool, which begins with the tasks numbered `kept` of this one and goes on with
        tasks that were never played. All of its tasks are known by their ids."""
        history = TaskHistory(pool, len(pool), self.seed)
        history.clock, history.tests = self.clock, self.tests
        history.of = self.of.rows(kept, len(pool) - len(kept))
        for index in range(len(pool)):
            history.drawn(index)
        return history

    def outcomes(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> Iterator[tuple[int, Outcome]]:
        """Yields how the groups ended that the policy played of tasks of the pool, with the numbers of the tasks."""
        for group, judged in zip(groups, scores, strict=True):
            index, result = self._index.get(group.task.id), outcome(group, judged)
            if index is not None and result is not None and group.origin == "policy":
                yield index, result

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Adds what a step played. Tasks of other curricula or splits are not in the pool, and are left out."""
        for index, result in self.outcomes(groups, scores):
            self.of.add(index, result, self.clock)
        self.of.copy(_numbers(self._first), _numbers(self._first.values()))
        self.clock += 1

    def observe_evaluation(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Replaces `tests` by the outcomes of an evaluation."""
        self.tests = {}
        for group, judged in zip(groups, scores, strict=True):
            if (result := outcome(group, judged)) is None:
                continue
            for label in (group.task.env, *(group.task.tags or (UNTAGGED,))):
                episodes, successes = self.tests.get(label, (0.0, 0.0))
                self.tests[label] = episodes + result.episodes, successes + result.episodes * result.success

    def state(self) -> Mapping[str, Any]:
        return {
            "clock": self.clock,
            "drawn": _numbers(self._first),
            "tests": {k: list(v) for k, v in self.tests.items()},
            **vars(self.of),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if len(state["episodes"]) != self.count:
            raise ConfigError(
                f"the curriculum's checkpoint knows {len(state['episodes'])} tasks, and the split has {self.count} "
                "now: resume with the tasks that the run began with"
            )
        self.clock = state["clock"]
        for name in vars(self.of).keys() & state.keys():  # a checkpoint of before knows no tokens
            setattr(self.of, name, np.array(state[name], dtype=np.float64))
        self.tests = {label: (episodes, successes) for label, (episodes, successes) in state["tests"].items()}
        self._index, self._first = {}, {}
        for index in state["drawn"]:
            self.drawn(int(index))


def _numbers(values: Iterable[int]) -> IntArray:
    return np.array(list(values), dtype=np.int64)


def labels_of(task: Task) -> tuple[str, ...]:
    """Returns what a task has in common with others: its world and its tags."""
    return (task.env, *task.tags)
