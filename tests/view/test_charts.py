"""What curves keep when they are made smaller or smoother."""

from __future__ import annotations

import json
import re
from html import unescape

import numpy as np
import pytest

from sojourn.view.charts import MAX_POINTS, Curve, chart, number, smooth, thinned


def test_a_thinned_curve_keeps_its_spikes_its_values_and_its_end() -> None:
    x, y = np.arange(1000.0), np.random.default_rng(0).normal(size=1000)
    for spike in (101, 500, 901):
        y[spike] = 50.0
    kept = thinned(Curve("loss", x, y))
    assert len(kept.x) <= MAX_POINTS
    assert {101, 500, 901, 999} <= set(kept.x.astype(int))
    assert np.array_equal(kept.y, y[kept.x.astype(int)])
    assert np.all(np.diff(kept.x) > 0)


def test_smoothing_keeps_positions_and_gaps() -> None:
    y = np.zeros(21)
    y[10] = 1.0
    y[20] = np.nan
    smoothed = smooth(y, 2.0)
    assert np.nanargmax(smoothed) == 10
    assert np.isnan(smoothed[20])
    assert np.isclose(smoothed[12], smoothed[8])
    for window, expected in ((np.inf, np.full(20, 0.05)), (np.nan, y[:20])):  # as a command or an address may have it
        assert np.allclose(smooth(y, window)[:20], expected)


def test_a_chart_holds_the_values_that_it_draws_and_escapes_names() -> None:
    drawn = chart("<b>", [Curve("a<script>", np.array([0.0, 1.0]), np.array([0.25, np.nan])),
                          Curve("b", np.array([0.0]), np.array([np.inf]))])  # fmt: skip
    assert "<script>" not in drawn
    [values] = re.findall(r'data-curves="([^"]*)"', drawn)
    assert json.loads(unescape(values)) == [{"name": "a<script>", "x": [0, 1], "y": [0.25, None]}]


@pytest.mark.parametrize(("value", "shown"), [(999.4, "999"), (999.7, "1000"), (-999.7, "-1000"), (9999.7, "10k")])
def test_a_number_below_a_power_of_ten_is_written_out(value: float, shown: str) -> None:
    assert number(value) == shown


def test_the_values_of_a_chart_are_over_what_it_names() -> None:
    curve = Curve("requests", np.arange(2.0), np.ones(2))
    assert 'data-x="step"' in chart("success", [curve])
    assert 'data-x="minute"' in chart("requests", [curve], x="minute")
