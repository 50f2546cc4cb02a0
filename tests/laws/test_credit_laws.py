"""Laws of every estimator: permuting episodes permutes credit; a constant added to rewards changes nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import group, score, trajectory

from sojourn.credit.grpo import GRPO
from sojourn.credit.reinforce import Reinforce
from sojourn.credit.rloo import RLOO

ESTIMATORS = [GRPO(), GRPO(scale_by_std=False), RLOO(), Reinforce()]
totals = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 1.0]), min_size=2, max_size=6)


def credit(estimator, trajectories, rewards):
    made = group(trajectories)
    scores = [[score(t, r) for t, r in zip(trajectories, rewards, strict=True)]]
    return [np.concatenate(c.tokens) for c in estimator([made], scores, {})[0]]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(rewards=totals, order=st.randoms(use_true_random=False))
def test_permuting_episodes_permutes_credit(estimator, rewards, order):
    rng = np.random.default_rng(0)
    made = [trajectory(rng) for _ in rewards]
    shuffled = list(range(len(rewards)))
    order.shuffle(shuffled)
    plain = credit(estimator, made, rewards)
    moved = credit(estimator, [made[i] for i in shuffled], [rewards[i] for i in shuffled])
    for place, i in enumerate(shuffled):
        np.testing.assert_allclose(moved[place], plain[i], atol=1e-5)


@pytest.mark.parametrize("estimator", [GRPO(), GRPO(scale_by_std=False), RLOO()])
@given(rewards=totals, constant=st.sampled_from([-2.0, 0.5, 8.0]))
def test_a_constant_added_to_rewards_changes_nothing(estimator, rewards, constant):
    rng = np.random.default_rng(0)
    made = [trajectory(rng) for _ in rewards]
    for plain, moved in zip(
        credit(estimator, made, rewards), credit(estimator, made, [r + constant for r in rewards]), strict=True
    ):
        np.testing.assert_allclose(moved, plain, atol=1e-4)
