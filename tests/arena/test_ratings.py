"""Ratings by games: what the model says, what is known of it, and what intervals hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from sojourn.arena.ratings import CENTRE, ELO, PRIOR_SD, GameResult, points_between, ratings, strengths


def drawn(true: np.ndarray, tasks: int, seed: int) -> list[GameResult]:
    """Games of players of these strengths: every two once for each task."""
    rng, games = np.random.default_rng(seed), []
    for task in range(tasks):
        for first in range(len(true)):
            for second in range(first + 1, len(true)):
                won = rng.random() < 1 / (1 + math.exp(true[second] - true[first]))
                games.append(GameResult(first, second, float(won), task))
    return games


def test_strengths_are_the_most_probable_ones() -> None:
    won = points_between(4, drawn(np.array([1.0, 0.0, -0.5, 2.0]), 30, 0))

    def loss(found: np.ndarray) -> float:
        odds = found[:, None] - found[None, :]
        return float((won * np.log1p(np.exp(-odds))).sum() + (found**2).sum() / (2 * PRIOR_SD**2))

    expected = minimize(loss, np.zeros(4), tol=1e-10).x
    assert strengths(won) == pytest.approx(expected - expected.mean(), abs=1e-5)


def test_two_players_have_the_odds_of_their_points() -> None:
    games = [GameResult(0, 1, 1.0, task) for task in range(3000)] + [
        GameResult(1, 0, 1.0, task) for task in range(1000)
    ]
    one, other = ratings(2, games)
    assert one.mean - other.mean == pytest.approx(ELO * math.log(3), rel=1e-3)
    assert one.mean + other.mean == pytest.approx(2 * CENTRE)
    assert (one.n, other.n) == (4000, 4000)


def test_a_draw_is_half_a_win_of_each_and_the_order_says_nothing() -> None:
    draws = [GameResult(0, 1, 0.5, 0), GameResult(1, 2, 1.0, 1), GameResult(2, 0, 0.0, 1)]
    halves = [GameResult(0, 1, 1.0, 0), GameResult(0, 1, 0.0, 0), *draws[1:]]
    turned = [GameResult(game.second, game.first, 1 - game.points, game.task) for game in draws]
    assert (points_between(3, turned) == points_between(3, draws)).all()
    assert points_between(3, halves)[0, 1] == 2 * points_between(3, draws)[0, 1]
    assert ratings(3, turned) == ratings(3, draws)


def test_one_that_never_loses_and_one_that_never_plays_have_finite_ratings() -> None:
    best, worst, absent = ratings(3, [GameResult(0, 1, 1.0, task) for task in range(1000)])
    assert CENTRE + 300 < best.mean < CENTRE + 3000
    assert worst.mean < CENTRE
    assert absent.mean == pytest.approx(CENTRE)
    assert absent.n == 0


def test_games_of_a_single_task_have_no_interval() -> None:
    [one, _] = ratings(2, [GameResult(0, 1, 1.0, 0)])
    assert (one.low, one.high) == (-math.inf, math.inf)
    assert ratings(2, [])[0].n == 0


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    true = np.array([0.8, 0.0, -0.8])
    held = [
        found.low <= CENTRE + ELO * strength <= found.high
        for seed in range(40)
        for strength, found in zip(true, ratings(3, drawn(true, 60, seed), seed), strict=True)
    ]
    assert 0.85 < sum(held) / len(held) < 0.995
