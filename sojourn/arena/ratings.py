"""Rates players by the games between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.intervals import Estimate

ELO = 400 / math.log(10)  # points of Elo in a unit of log-odds
CENTRE = 1000.0  # of the ratings of a league
PRIOR_SD = 3.0  # of strengths, in log-odds: 521 points of Elo
RESAMPLES = 200
NEWTON_STEPS = 50


class GameResult(NamedTuple):
    """A game of two players by their numbers. `points` are the first one's: 1 for a win, 0.5 for a draw; `task` is the
    number of what was played, which games have in common."""

    first: int
    second: int
    points: float
    task: int


def points_between(players: int, games: Sequence[GameResult]) -> NDArray[np.float64]:
    """Returns the points that each player won from each other: (players, players)."""
    won = np.zeros((players, players))
    for game in games:
        won[game.first, game.second] += game.points
        won[game.second, game.first] += 1 - game.points
    return won


def strengths(won: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the strength of each player in log-odds, (players,), with a mean of 0.

    They are those of the model of Bradley and Terry (1952, Biometrika 39), in which player i beats player j with the
    probability 1 / (1 + exp(s_j - s_i)), fitted by Newton's method. A draw counts as half a win of each. A weak normal
    prior, of standard deviation `PRIOR_SD`, keeps the strength of one that never lost finite.
    """
    played = won + won.T
    found = np.zeros(len(won))
    for _ in range(NEWTON_STEPS):
        odds = 1 / (1 + np.exp(found[None, :] - found[:, None]))  # (players, players): of the row beating the column
        gradient = (won - played * odds).sum(axis=1) - found / PRIOR_SD**2
        weights = played * odds * (1 - odds)
        hessian = np.diag(weights.sum(axis=1) + 1 / PRIOR_SD**2) - weights
        step = np.linalg.solve(hessian, gradient)
        found += np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-9:
            break
    return found - found.mean()


def ratings(players: int, games: Sequence[GameResult], seed: int = 0) -> list[Estimate]:
    """Returns the rating of each player on the scale of Elo (1978), on which 400 points are odds of 10 to 1, with the
    mean of all at `CENTRE`.

    The 95% intervals are percentiles of `RESAMPLES` bootstrap samples of the tasks, as games of the same task are not
    independent; they are about players like these.
    """
    found = strengths(points_between(players, games))
    tasks = sorted({game.task for game in games})
    of_task = {task: points_between(players, [game for game in games if game.task == task]) for task in tasks}
    rng, drawn = np.random.default_rng(seed), list[NDArray[np.float64]]()
    for _ in range(RESAMPLES if len(tasks) > 1 else 0):
        chosen = rng.choice(len(tasks), len(tasks))
        drawn.append(strengths(np.sum([of_task[tasks[number]] for number in chosen], axis=0)))
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0) if drawn else (found - math.inf, found + math.inf)
    counts = [sum(player in (game.first, game.second) for game in games) for player in range(players)]
    on_scale = [[CENTRE + ELO * float(value) for value in values] for values in (found, low, high)]
    return [Estimate(*one) for one in zip(*on_scale, counts, strict=True)]
