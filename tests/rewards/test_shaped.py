"""Shaping by a potential, and several numbers as one reward, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from cases import group, trajectory

from sojourn.config.registry import build
from sojourn.credit.by_turn import returns_to_go
from sojourn.errors import ConfigError
from sojourn.rewards.composite import Composite
from sojourn.rewards.native import Native
from sojourn.rewards.shaped import Shaped
from sojourn.types import Ending


def line(rewards, infos, ending=Ending.DONE):
    made = trajectory([1] * len(rewards), infos=infos)
    turns = tuple(replace(turn, reward=reward) for turn, reward in zip(made.turns, rewards, strict=True))
    return replace(made, turns=turns, ending=ending)


INFOS = [{"progress": 0.5}, {"progress": 0.8}, {"progress": 1.0}]


async def test_shaping_by_hand():
    [judged] = await Shaped(discount=0.9)(group(line([0, 0, 1], INFOS)))
    assert judged.turns.tolist() == pytest.approx([0.45, 0.22, 0.2])
    assert judged.parts["shaping"] == pytest.approx(-0.13)
    plain = returns_to_go((await Native()(group(line([0, 0, 1], INFOS))))[0], 0.9)
    assert returns_to_go(judged, 0.9) == pytest.approx(plain - [0, 0.5, 0.8])


async def test_a_cut_trajectory_keeps_its_potential_and_a_silent_turn_the_last():
    infos = [{"progress": 0.5}, {}, {}]
    [judged] = await Shaped(start=0.25, scale=2.0)(group(line([0, 0, 0], infos, Ending.TURNS)))
    assert judged.turns.tolist() == [0.5, 0, 0]
    [judged] = await Shaped(start=0.25, scale=2.0)(group(line([0, 0, 0], infos)))
    assert judged.turns.tolist() == [0.5, 0, -1]


async def test_several_numbers_by_hand():
    infos = [{"found": 0.5, "formatted": 1.0}, {"found": 1.0, "answer": 0.5, "success": 1.0}]
    weights = {"found": 0.8, "search": 0.05, "answer": 0.15}
    made = group(line([9, 9], infos), line([9, 9], [{}, {"found": 1.0, "formatted": 0.0}]))
    one, other = await Composite(weights=weights, gate_key="formatted", closed_reward=-1.0)(made)
    assert one.turns.tolist() == pytest.approx([0, 0.875])
    assert one.parts == {"success": 1.0, "gate": 1.0, "found": 1.0, "search": 0.0, "answer": 0.5}
    assert other.turns.tolist() == [0, -1]
    assert np.isclose((await Composite(weights=weights)(made))[1].total, 0.8)


@pytest.mark.parametrize(("weights", "why"), [({}, "at least one"), ({"a": "much"}, "weights.a = 'much'")])
def test_weights_that_mean_nothing_are_refused(weights, why):
    with pytest.raises(ConfigError, match=why):
        build("reward", {"name": "composite", "weights": weights})
