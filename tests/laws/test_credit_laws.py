"""Laws of every estimator: permuting episodes permutes credit; a constant added to rewards changes nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import group, score, trajectory

from sojourn.credit.grpo import GRPO
from sojourn.credit.opo import OPO
from sojourn.credit.papers.mgrpo import MGRPO
from sojourn.credit.reinforce import Reinforce
from sojourn.credit.rloo import RLOO
from sojourn.sources.slots import has_zero_signal
from sojourn.types import Score

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


ROUNDED = st.lists(st.sampled_from([-0.01, 0.1, 0.2, 0.3, 0.7, 10.0]), min_size=2, max_size=40)


@pytest.mark.parametrize("estimator", [GRPO(), MGRPO(main_coef=0.0), OPO(), RLOO()])
@given(rewards=ROUNDED, shift=st.sampled_from([0.0, 4.0, 100.0]), order=st.randoms(use_true_random=False))
def test_returns_that_are_equal_but_for_rounding_give_no_credit(estimator, rewards, shift, order):
    """The same rewards of turns in another order, with a constant added to the last, have another sum in 32 bits."""
    rng, made, scores = np.random.default_rng(0), [], []
    for _ in range(4):
        order.shuffle(rewards)
        turns = np.array([*rewards[:-1], rewards[-1] + shift], dtype=np.float32)
        made.append(trajectory(rng, turns=len(turns)))
        scores.append(Score(turns))
    assert has_zero_signal(group(made), scores, "score")
    found = estimator([group(made)], [scores], {})[0]
    assert max(float(np.abs(tokens).max(initial=0)) for credit in found for tokens in credit.tokens) < 1e-4
