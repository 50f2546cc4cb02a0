"""Planned turns are followed as long as the model would be asked what it was asked in the copy."""

from __future__ import annotations

import pytest
from search_worlds import Draws, Family, played

from sojourn.agents.plain import Plain
from sojourn.agents.return_conditioned import ReturnConditioned
from sojourn.agents.self_verifying import SelfVerifying
from sojourn.searchers.best_of_n import BestOfN

BASES = {
    "plain": Plain(),
    "window": Plain(history="window", turns=1),
    "page": Plain(history="page"),
    "numbered": SelfVerifying(),
    "to_go": ReturnConditioned(to_go=True),
}


@pytest.mark.parametrize("base", BASES)
def test_a_plan_is_followed_where_the_base_adds_to_what_the_world_shows(base):
    sampler = Draws()
    [trajectory] = played(Family(hint=0.25), BestOfN(n=10, base=BASES[base]), sampler).trajectories
    assert [len(turn.considered) for turn in trajectory.turns] == [10, 0, 0]
    assert trajectory.reward == max(one.value for one in trajectory.turns[0].considered)
    asked = [(trajectory.prompt(n).tobytes(), id(turn.sample)) for n, turn in enumerate(trajectory.turns)]
    assert set(asked) <= {(prompt, id(sample)) for prompt, sample in sampler.asked}
