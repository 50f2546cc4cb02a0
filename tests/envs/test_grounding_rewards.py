"""Grounding without a browser: what answers say, and what they are paid."""

from __future__ import annotations

import math
import random

import pytest

from sojourn.envs.grounding import Grounding, _elements, read
from sojourn.envs.grounding.drawn import page
from sojourn.envs.grounding.rewards import Box, distance, gaussian, inside, sized
from sojourn.errors import ActionError, ConfigError

TARGET, SCREEN = Box(100, 100, 140, 120), (480, 320)


def test_boxes_are_read() -> None:
    assert read(" box(1, 2.5, 30,40) ", "box", SCREEN) == Box(1, 2.5, 30, 40)
    for said in ("box(5, 2, 5, 4)", "box(1, 9, 5, 4)", "click(1, 2)", "box(1, 2, 3)", "box(1, 2, 500, 4)"):
        with pytest.raises(ActionError):
            read(said, "box", SCREEN)


def test_a_point_is_paid_by_the_distance_to_the_centre() -> None:
    def point(x: float, y: float) -> Box:
        return Box(x, y, x, y)

    assert [inside(point(x, 110), TARGET, SCREEN) for x in (99, 100, 140, 141)] == [0, 1, 1, 0]
    assert distance(point(120, 110), TARGET, SCREEN) == 1
    reach = 0.2 * math.hypot(480, 320)
    assert distance(point(120 + reach / 2, 110), TARGET, SCREEN) == pytest.approx(0.5)
    assert distance(point(400, 300), TARGET, SCREEN) == 0
    assert gaussian(point(120, 110), TARGET, SCREEN) == 1
    assert gaussian(point(140, 110), TARGET, SCREEN) == pytest.approx(math.exp(-0.5))  # one deviation to the right
    assert gaussian(point(140, 120), TARGET, SCREEN) == pytest.approx(math.exp(-1))
    small = Box(118, 109, 122, 111)  # the same centre
    assert gaussian(point(125, 110), small, SCREEN) < gaussian(point(125, 110), TARGET, SCREEN)


def test_a_box_is_paid_by_its_size_too() -> None:
    for reward in (gaussian, sized):
        exact = reward(TARGET, TARGET, SCREEN)
        tiny = reward(Box(118, 109, 122, 111), TARGET, SCREEN)
        huge = reward(Box(20, 60, 220, 160), TARGET, SCREEN)
        assert exact == pytest.approx(1.0)
        assert 0 < tiny < exact
        assert 0 < huge < exact
    # two Gaussians of one centre, of which one is twice as wide: the coefficient is sqrt(2 * 1 * 2 / (1 + 4))
    wide = gaussian(Box(80, 100, 160, 120), TARGET, SCREEN)
    assert wide == pytest.approx((1 + math.sqrt(4 / 5)) / 2)
    # half of the target: a hit, an overlap of a half, and one edge of four wrong by half a side
    assert sized(Box(100, 100, 120, 120), TARGET, SCREEN) == pytest.approx((1 + 0.25 * 0.5 + 0.125 * 0.875) / 1.375)
    assert sized(Box(0, 0, 10, 10), TARGET, SCREEN) == pytest.approx(0.0)


def test_elements_off_the_screen_too_small_or_nameless_are_left_out() -> None:
    def entry(name: str = "Ok", role: str = "button", x: int = 50, y: int = 50, w: int = 21, h: int = 10) -> dict:
        return {"kind": "element", "name": name, "role": role, "x": x, "y": y, "w": w, "h": h}

    kept = _elements([entry(), entry(name=""), entry(x=5), entry(y=318), entry(h=4), entry(role="canvas")], *SCREEN)
    assert kept == [("Ok button", Box(40, 45, 60, 55))]
    assert _elements([entry("Name", "textbox")], *SCREEN)[0][0] == "Name text field"


def test_drawn_pages_follow_from_their_seed() -> None:
    assert page(random.Random(3)) == page(random.Random(3))
    assert len({page(random.Random(seed)) for seed in range(50)}) == 50


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sources": ("web",)}, "drawn"),
        ({"sources": ()}, "shop"),
        ({"reward": "iou"}, "gaussian"),
        ({"answer": "circle"}, "box"),
        ({"observation": "sound"}, "both"),
        ({"reward": "sized"}, "answer"),
        ({"contexts": 0}, "contexts"),
        ({"train": 2 * 10**9}, "train"),
    ],
)
def test_configs_that_cannot_work_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Grounding(**wrong)  # type: ignore[arg-type]


def test_the_splits_share_nothing_and_the_world_must_be_open() -> None:
    family = Grounding(train=30, test=20)
    train, test = family.tasks("train"), family.tasks("test")
    assert (len(train), len(test)) == (30, 20)
    assert not {task.seed for task in train} & {task.seed for task in test}
    assert [task.tags for task in train[:3]] == [("drawn",), ("miniwob",), ("shop",)]
    with pytest.raises(ConfigError, match="open"):
        family.make(train[0])
