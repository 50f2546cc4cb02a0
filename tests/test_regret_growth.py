"""The growth of regret: what is read of plays, and both tests against numbers worked by hand and by another formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases import group, of_episodes, trajectory
from scipy.stats import binomtest, linregress

from sojourn.regret_growth import falling, fitted_exponent, growth, regret_growth


def test_an_exact_power_has_its_exponent():
    rounds = np.arange(1, 26)
    exponent, p = fitted_exponent(3 * rounds**0.5)
    assert exponent == pytest.approx(0.5)
    assert p < 1e-6


def test_the_regression_is_that_of_scipy():
    values = np.array([1.0, 2.5, 2.0, 4.5, 4.0])
    fit = linregress(np.log(np.arange(1, 6)), np.log(values))
    assert fitted_exponent(values) == pytest.approx((fit.slope, fit.pvalue))


def test_no_regret_counts_as_the_logarithm_minus_ten():
    """Logs 0, -10, 0 at ln 1, 2, 3, whose slope is the covariance over the variance."""
    logs, at = np.array([0.0, -10.0, 0.0]), np.log([1, 2, 3])
    expected = ((at - at.mean()) * logs).sum() / ((at - at.mean()) ** 2).sum()
    assert fitted_exponent([1, -2, 1])[0] == pytest.approx(expected)
    assert math.isnan(fitted_exponent([1, 2])[0])


def test_the_sign_test_by_hand():
    """Per round: 1, 1/2, 2/3, 1/2: two falls of three, and 4 of the 8 ways to toss three coins have as many."""
    assert falling([1, 1, 2, 2]) == (2, 0.5)
    assert falling([1, 2, 3]) == (0, 1.0)  # equal is no fall
    assert falling([1]) == (0, 1.0)
    falls, p = falling(np.sqrt(np.arange(1, 30)))
    assert (falls, p) == (28, pytest.approx(binomtest(28, 28, alternative="greater").pvalue))


def test_the_mean_of_plays_by_round_and_the_rounds_that_a_play_has():
    found = growth([[1, 2, 3], [3]])
    assert found.regrets == (2, 2, 3)
    assert found.plays == 2


def test_it_reads_turns_and_seats():
    alone = trajectory([1, 1, 1], infos=[{"regret": 1.0}, {}, {"regret": 2.0}])
    untold = trajectory([1])
    assert regret_growth([group(alone, untold)])["agent"].regrets == (1, 2)
    row = trajectory([1, 1], infos=[{"move": 0.0, "row_regret": 0.0}, {"move": 2.0, "row_regret": 1.0}], agent="row")
    ends = [{"row_regret": 1.0, "column_regret": 5.0}, {"row_regret": 4.0, "column_regret": 6.0}]
    column = trajectory([1, 1], infos=[{"move": 1.0, **ends[0]}, {"move": 3.0, **ends[1]}], agent="column")
    found = regret_growth([of_episodes([[row, column]])])
    assert {seat: one.regrets for seat, one in found.items()} == {"row": (1, 4), "column": (5, 6)}
