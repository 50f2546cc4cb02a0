"""The penalty for saying too much, by hand."""

import numpy as np
import pytest
from made import group, sample

from sojourn.config.registry import build
from sojourn.errors import ConfigError
from sojourn.rewards.native import Native
from sojourn.rewards.overlong import Overlong
from sojourn.types import Ending, Trajectory, Turn


def said(*lengths, reward=1.0, ending=Ending.DONE):
    turns = [Turn(n - 1, np.arange(2), sample(list(range(length))), None) for n, length in enumerate(lengths)]
    return Trajectory(
        "agent", (*turns[:-1], Turn(len(turns) - 2, np.arange(2), turns[-1].sample, None, reward)), ending
    )


async def test_it_grows_within_the_margin_and_counts_all_turns():
    made = group([said(40, 40), said(30, 70), said(100, 25), said(100, 50), said(500)])
    judged = await Overlong(max_tokens=150, buffer_tokens=50, penalty=0.5)(made)
    assert [score.turns.tolist() for score in judged] == [[0, 1], [0, 1], [0, 0.75], [0, 0.5], [0.5]]
    assert [score.parts["overlong"] for score in judged] == [0, 0, 0.25, 0.5, 0.5]


async def test_it_stands_on_another_reward():
    made = group([said(10, ending=Ending.TURNS)])
    [judged] = await Overlong(base=Native(truncated=-2.0), max_tokens=5, buffer_tokens=5)(made)
    assert judged.total == -2
    assert judged.parts["truncated"] == 1


def test_a_margin_beyond_the_bound_is_refused():
    with pytest.raises(ConfigError, match="buffer_tokens = 64 with max_tokens = 10"):
        build("reward", {"name": "overlong", "max_tokens": 10})
