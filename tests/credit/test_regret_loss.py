"""The regret-loss against its equation: by hand, and against finite differences of the paper's loss in a bandit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cases import by_turn, group, of_episodes, paid, trajectory

from sojourn.credit.papers.regret_loss import RegretLoss
from sojourn.credit.rloo import RLOO

LOSSES = np.array([[[0.0, 1.0, 0.4], [0.2, 0.9, 1.0]], [[1.0, 0.0, 0.5], [1.0, 0.1, 0.0]], [[0.3, 0.2, 0.0]] * 2])
"""Losses of three actions in each of two rounds of three sequences: (N, T, actions)."""
POLICY = np.array([0.5, 0.25, 0.25])  # of every round


def regrets_of(policy, losses=LOSSES):
    """The exact regrets of a policy that acts alike in all rounds, as the paper defines them: (N,)."""
    return (losses @ policy).sum(1) - losses.sum(1).min(1)


def plays():
    """All plays of two rounds, each as often in a group as the policy makes it likely; their actions."""
    return [
        (one, other)
        for one, other in product(range(3), repeat=2)
        for _ in range(round(16 * POLICY[one] * POLICY[other]))
    ]


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("k", [0.0, 1.0, 4.0])
def test_credit_is_the_gradient_of_the_loss(k, power):
    """The policy is a softmax; its score-function gradient with the credit, over groups that hold each play as often as
    it is likely, is the gradient of the loss by finite differences."""
    estimator = RegretLoss(k=k, power=power)
    logits, actions = np.log(POLICY), plays()

    def loss(logits):
        policy = np.exp(logits) / np.exp(logits).sum()
        return estimator.loss(regrets_of(policy))

    step = 1e-5 * np.eye(3)
    expected = [(loss(logits + one) - loss(logits - one)) / 2e-5 for one in step]
    groups = [group(*(trajectory([1, 1]) for _ in actions), slot=n) for n in range(len(LOSSES))]
    scores = []
    for losses in LOSSES:
        best = losses.sum(0).min()
        scores.append(paid(*([-losses[0][one], best - losses[1][other]] for one, other in actions)))
    credits = estimator(groups, scores, {})
    gradient = np.zeros(3)
    for credit in credits:
        for (one, other), advantages in zip(actions, by_turn(credit), strict=True):
            score = np.eye(3)[one] + np.eye(3)[other] - 2 * POLICY  # of log-probabilities by the logits
            gradient -= advantages[0] * score / len(actions) / len(LOSSES)
    others = (len(actions) - 1) / len(actions)  # a mean of others is further from a value than the mean of all
    assert others * gradient == pytest.approx(expected, abs=1e-7)


def test_by_hand():
    """Regrets 1 and 0 with k = ln 3: weights 3/4 and 1/4, h = R^2, its weighted mean 3/4."""
    groups = [group(trajectory([1]), trajectory([2]), slot=0), group(trajectory([1]), trajectory([1]), slot=1)]
    scores = [paid([-2], [0]), paid([1], [-1])]
    credits = RegretLoss(k=float(np.log(3)))(groups, scores, {})
    first, second = 3 / 4 * (2 + np.log(3) / 4), 1 / 4 * np.log(3) * -3 / 4
    assert by_turn(credits[0]) == [[pytest.approx(-4 * first)], [pytest.approx(4 * first)]]
    assert by_turn(credits[1]) == [[pytest.approx(4 * second)], [pytest.approx(-4 * second)]]


def test_a_mean_of_regrets_is_rloo():
    groups = [group(*(trajectory([1]) for _ in range(3)), slot=n) for n in range(2)]
    scores = [paid([-2], [-3], [-1]), paid([-0.5], [0], [-0.25])]
    found = RegretLoss(k=0.0, power=1)(groups, scores, {})
    assert [by_turn(one) for one in found] == [by_turn(one) for one in RLOO()(groups, scores, {})]


def test_each_seat_is_a_sequence_of_its_own():
    seats = [[trajectory([1], agent="row"), trajectory([1], agent="column")] for _ in range(2)]
    [credit] = RegretLoss(k=0.0)([of_episodes(seats)], [paid([-1], [-2], [-3], [-2])], {})
    assert [turn for turns in by_turn(credit) for turn in turns] == pytest.approx([8, 0, -8, 0])  # 2 R of row is 4


def test_a_larger_k_comes_close_to_the_worst_sequence():
    regrets = np.array([0.1, 0.7, 0.4])
    assert RegretLoss(k=200.0, power=1).loss(regrets) == pytest.approx(0.7)
    assert RegretLoss(k=0.0, power=1).loss(regrets) == pytest.approx(0.4)
