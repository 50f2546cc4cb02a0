"""The reward that measures regret, in the games that tell it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases import group, of_episodes, trajectory

from sojourn.errors import ConfigError
from sojourn.rewards.native import Native
from sojourn.rewards.regret import Regret
from sojourn.types import Ending


async def test_it_is_measured_and_the_reward_stays():
    made = group(trajectory([1, 1], infos=[{"regret": 1.0}, {"regret": 3.0}]), trajectory([1], infos=[{"regret": 0.5}]))
    first, second = await Regret()(made)
    assert (first.parts["regret"], second.parts["regret"]) == (1.5, 0.5)
    assert [score.total for score in (first, second)] == [0, 0]


async def test_it_is_subtracted_at_the_last_turn_and_from_the_outcome():
    made = group(trajectory([1, 1], infos=[{"regret": 1.0}, {"regret": 3.0}]))
    [score] = await Regret(coef=0.5, per_round=False)(made)
    assert score.turns.tolist() == [0, -1.5]
    assert score.result == -1.5


async def test_seats_have_the_last_number_of_the_episode_whoever_took_the_turn():
    row = trajectory([1, 1], infos=[{"move": 0.0, "row_regret": 0.0}, {"move": 2.0, "row_regret": 1.0}], agent="row")
    seen = {"row_regret": 4.0, "column_regret": 6.0}
    column = trajectory([1, 1], infos=[{"move": 1.0}, {"move": 3.0, **seen}], agent="column")
    scores = await Regret(coef=1.0, base=Native(scale=0.0))(of_episodes([[row, column]]))
    assert [score.parts["regret"] for score in scores] == [2.0, 3.0]
    assert [float(score.turns[-1]) for score in scores] == [-2.0, -3.0]


async def test_a_world_that_tells_none_is_refused_but_not_a_play_that_ended_early():
    untold = trajectory([1])
    with pytest.raises(ConfigError, match="have no number 'missed' or 'agent_missed'"):
        await Regret(info_key="missed", coef=1.0)(group(untold))
    for reward, made in ((Regret(), untold), (Regret(coef=1.0), replace(untold, ending=Ending.TURNS))):
        [score] = await reward(group(made))
        assert "regret" not in score.parts
    [broken] = await Regret(coef=1.0)(group(trajectory([1], infos=[{"lost": 1.0}])))
    assert np.array_equal(broken.turns, [0])
