"""What an answer is paid, on examples worked by hand."""

from __future__ import annotations

import math

import pytest

from sojourn_worlds.grounding.rewards import REWARDS, Box, difficulty

SCREEN = (1000, 1000)
TARGET = Box(100, 100, 200, 200)


@pytest.mark.parametrize("name", REWARDS)
def test_the_target_itself_earns_everything(name: str) -> None:
    assert REWARDS[name](TARGET, TARGET, SCREEN) == pytest.approx(1.0)


def test_a_point_is_paid_by_its_distance_in_deviations() -> None:
    point = Box(200, 150, 200, 150)  # one deviation, half the width, from the centre
    assert REWARDS["gaussian"](point, TARGET, SCREEN) == pytest.approx(math.exp(-0.5))
    assert REWARDS["inside"](point, TARGET, SCREEN) == 1.0


def test_a_box_twice_as_high_is_paid_by_its_overlap() -> None:
    box = Box(100, 50, 200, 250)  # the same centre, deviations 50 and 100 in height
    overlap = math.sqrt(2 * 50 * 100 / (50**2 + 100**2))
    assert REWARDS["gaussian"](box, TARGET, SCREEN) == pytest.approx((1 + overlap) / 2)


def test_a_box_of_the_wrong_size_is_paid_by_hit_union_and_edges() -> None:
    box = Box(100, 100, 200, 300)  # the centre is on the target's edge, the union twice the target, one edge 100 off
    edges = 4 / (1 + 1 + 1 + 1 / 0.9)
    assert REWARDS["sized"](box, TARGET, SCREEN) == pytest.approx((1 + 0.25 * 0.5 + 0.125 * edges) / 1.375)
    assert REWARDS["sized"](Box(100, 100, 200, 1100), TARGET, SCREEN) < 0.1  # the edge's error is nearly the screen


def test_distance_falls_evenly_to_nothing() -> None:
    diagonal = math.hypot(*SCREEN)
    half = Box(150 + 0.1 * diagonal, 150, 150 + 0.1 * diagonal, 150)
    assert REWARDS["distance"](half, TARGET, SCREEN) == pytest.approx(0.5)
    assert REWARDS["distance"](Box(900, 900, 900, 900), TARGET, SCREEN) == 0.0


def test_the_smaller_the_box_the_greater_the_difficulty() -> None:
    assert difficulty(Box(0, 0, 1000, 1000), SCREEN) == 1
    assert difficulty(TARGET, SCREEN) == pytest.approx(100)
    assert difficulty(Box(100, 100, 200, 150), SCREEN) == pytest.approx(200)
