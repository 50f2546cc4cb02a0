"""A seat that never acted, as the other one ended the play first, has the reward that the world gave it."""

import pytest
from cases import group

from sojourn.rewards.composite import Composite
from sojourn.rewards.native import Native
from sojourn.rewards.verified import Verified
from sojourn.types import Ending, Trajectory


def unacted(reward):
    given = {"success": float(reward > 0), "found": reward}
    return Trajectory("second", (), Ending.DONE, unacted_reward=reward, unacted_info=given)


@pytest.mark.parametrize(
    ("reward", "won", "lost"),
    [
        (Native(scale=2.0), 2.0, 0.0),
        (Composite(), 1.0, 0.0),
        (Composite(weights={"found": 0.5, "success": 1.0}), 1.5, 0.0),
        (Composite(weights={"success": 1.0}, gate_key="found", closed_reward=-1.0), 1.0, -1.0),
        (Verified(), 1.0, 0.0),
    ],
)
async def test_it_is_scored_by_what_it_was_given(reward, won, lost):
    scores = await reward(group(unacted(1.0), unacted(0.0)))
    assert [score.total for score in scores] == [won, lost]
    assert [score.result for score in scores] == [won, lost]
