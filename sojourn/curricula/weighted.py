"""Draws tasks by weights that follow from what was observed of each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sojourn.ability import Ability
from sojourn.curricula.task_history import Array, TaskHistory
from sojourn.types import Group, IntArray, Score, Task

MAX_DRAWS = 16  # observations whose weights are kept, for redraws of slots that began before
GOLDEN = (5**0.5 - 1) / 2


@runtime_checkable
class Weighs(Ability, Protocol):
    """The config of a curriculum that says how much each task is worth being played next.

    `weights` returns a number of at least 0 for each task (n,), not all of them 0 where any task may be played; a task
    of weight 0 is not drawn while others have more. A fraction `uniform` of the draws takes all with a weight alike.
    The pool are the first `max_tasks` tasks of the split. What `weights` draws at random it draws from `history.rng()`.
    Optional: `Predicts`.
    """

    @property
    def max_tasks(self) -> int: ...
    @property
    def uniform(self) -> float: ...
    def weights(self, history: TaskHistory) -> Array: ...


class WeighsSplit(Weighs, Protocol):
    """A curriculum that weighs tasks, which another may take as its base."""

    @property
    def split(self) -> str: ...


def require_weighs(base: object) -> None:
    """Raises `ValueError` for a base that does not weigh tasks."""
    if not isinstance(base, Weighs):
        raise ValueError(
            f"base = {type(base).__name__} draws tasks in an order of its own: expected a curriculum that weighs them, "
            "such as {name = 'learnability'}"
        )


@runtime_checkable
class Predicts(Ability, Protocol):
    """The config of a curriculum that predicts the success rate of each task (n,) in its own way."""

    def predicted(self, history: TaskHistory) -> Array: ...


def predicted(config: Weighs, history: TaskHistory) -> Array:
    """Returns the success rate that a curriculum expects of each task (n,): by default the mean of a Beta posterior
    from a uniform prior, in which every older group of a task counts 0.7 times as much."""
    if isinstance(config, Predicts):
        return config.predicted(history)
    return history.expected(1.0, 0.7)


def normalised(weights: Array) -> Array:
    """Returns weights that sum to 1: all alike where none is above 0."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / max(len(weights), 1))


def with_new(weights: Array, known: NDArray[np.bool_], new: float) -> Array:
    """Returns the weights of the tasks that are `known`, with the others at the fraction `new` of all draws, which they
    share alike; they have no other weight. Where there are none, or only they, that is all: (n,)."""
    shares = np.zeros(len(weights))
    shares[known] = normalised(weights[known]) * (1 if known.all() else 1 - new)
    shares[~known] = (new if known.any() else 1.0) / max(np.count_nonzero(~known), 1)
    return shares


def best_of(scores: Array, candidates: int) -> Array:
    """Returns, for each of n scores, the probability that it is the greatest of `candidates` that are drawn at random
    with replacement; equal scores share theirs: (n,)."""
    below = np.searchsorted(np.sort(scores), scores, side="left") / len(scores)
    upto = np.searchsorted(np.sort(scores), scores, side="right") / len(scores)
    return (upto**candidates - below**candidates) / np.round((upto - below) * len(scores))


def weighted_sample(rng: np.random.Generator, weights: Array, count: int) -> IntArray:
    """Returns up to `count` numbers of those with a weight above 0, in random order and none twice; the next is always
    drawn with a probability in proportion to its weight (Efraimidis and Spirakis 2006, "Weighted random sampling with a
    reservoir", algorithm A)."""
    possible = np.flatnonzero(weights > 0)
    keys = rng.exponential(size=len(possible)) / weights[possible]
    return possible[np.argsort(keys, kind="stable")[:count]]


@dataclass
class Draws:
    """The weights from one observation to the next, by which slots from `first` on are drawn."""

    first: int
    clock: int
    weights: Array  # (n,), which sum to 1

    def task(self, seed: int, slot: int, redraw: int) -> int:
        """Returns which task a slot plays. Each slot's first task is distributed as the weights are, and those of
        consecutive slots are spread evenly, so that a task of weight p takes nearly a fraction p of any number of them:
        the places on the line of all weights are those of an additive recurrence with the golden ratio. Its redraws are
        a weighted sample of the other tasks, none twice, until all that can be drawn were."""
        possible = np.flatnonzero(self.weights > 0)
        rng = np.random.default_rng([seed, self.clock])
        order = rng.permutation(possible)
        line, point = np.cumsum(self.weights[order]), (rng.random() + (slot - self.first) * GOLDEN) % 1
        first = int(order[min(int(np.searchsorted(line, point * line[-1], side="right")), len(order) - 1)])
        if redraw % len(possible) == 0:
            return first
        others = np.where(np.arange(len(self.weights)) == first, 0.0, self.weights)
        redraws = weighted_sample(np.random.default_rng([seed, self.clock, slot]), others, len(possible))
        return int(redraws[redraw % len(possible) - 1])


def beliefs(history: TaskHistory, probabilities: Array, expected: Array) -> dict[str, float]:
    """Returns the metrics of what is known of tasks whose probabilities of being drawn next (n,) and expected success
    rates (n,) are given.

    They are the entropy of the draw in nats, the fraction of the tasks that were never played, and the success rate
    that is expected of a task that is drawn; and, for each world and tag, its share of the draws, the success rate that
    is expected of its tasks, and how many of their episodes were observed.
    """
    possible = probabilities[probabilities > 0]
    values = {
        "draw_entropy": -float(possible @ np.log(possible)),
        "never_played": float(np.mean(~history.seen)),
        "predicted_success": float(probabilities @ expected),
    }
    episodes = np.where(history.counted, history.of.episodes, 0.0)
    for label, tasks in history.kinds.items():
        values[f"draw_share_{label}"] = float(probabilities[tasks].sum())
        values[f"predicted_success_{label}"] = float(expected[tasks].mean())
        values[f"observed_{label}"] = float(episodes[tasks].sum())
    return values


@dataclass
class WeightedCurriculum:
    """Draws the slots that begin between two observations by the weights of that time.

    A draw depends on the seed, the slot, and on what was observed before the slot began, never on the order in which
    slots are drawn. With a lag of more than `MAX_DRAWS` steps, redraws may use newer weights than their slot began
    with.
    """

    config: Weighs
    tasks: Sequence[Task]
    seed: int
    history: TaskHistory = field(init=False)
    _draws: list[Draws] = field(init=False)
    _next: int = 0  # above the number of every slot drawn so far

    def __post_init__(self) -> None:
        self.history = TaskHistory(self.tasks, min(len(self.tasks), self.config.max_tasks), self.seed)
        self._draws = [self._draws_now()]

    def draw(self, slot: int, redraw: int = 0) -> Task:
        self._next = max(self._next, slot + 1)
        draws = next((d for d in reversed(self._draws) if d.first <= slot), self._draws[0])
        return self.history.drawn(draws.task(self.seed, slot, redraw))

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        self.history.observe(groups, scores)
        if self._draws[-1].first == self._next:
            self._draws.pop()  # no slot began since
        self._draws = [*self._draws[1 - MAX_DRAWS :], self._draws_now()]

    def observe_evaluation(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        self.history.observe_evaluation(groups, scores)

    def probabilities(self) -> Array:
        """Returns the present probability of each task to be drawn first: (n,)."""
        weights = self._draws[-1].weights
        return weights / weights.sum()

    def metrics(self) -> Mapping[str, float]:
        return beliefs(self.history, self.probabilities(), predicted(self.config, self.history))

    def state(self) -> Mapping[str, Any]:
        draws = [{"first": d.first, "clock": d.clock, "weights": d.weights} for d in self._draws]
        return {"history": self.history.state(), "draws": draws, "next": self._next}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.history.restore(state["history"])
        self._draws = [Draws(d["first"], d["clock"], np.array(d["weights"])) for d in state["draws"]]
        self._next = state["next"]

    def _draws_now(self) -> Draws:
        weights = normalised(np.nan_to_num(np.asarray(self._weights(), dtype=np.float64)))
        spread = np.where(weights > 0, self.config.uniform / max(np.count_nonzero(weights), 1), 0.0)
        return Draws(self._next, self.history.clock, (1 - self.config.uniform) * weights + spread)

    def _weights(self) -> Array:
        return self.config.weights(self.history)
