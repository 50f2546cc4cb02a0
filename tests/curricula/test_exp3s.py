"""The bandit Exp3.S over tags, on examples computed by hand."""

from __future__ import annotations

from math import exp, log
from typing import Any

import numpy as np
import pytest
from histories import TASKS, after, observe, played

from sojourn.curricula.balanced import Balanced
from sojourn.curricula.exp3s import Arms, Exp3S
from sojourn.curricula.learnability import Learnability

EVEN = Learnability(uniform=0.0, decay=1.0)


def shares(curriculum: Any) -> list[float]:
    """The share of each level: the even and the odd tasks of `TASKS`."""
    found = curriculum.probabilities()
    return [float(found[0::2].sum()), float(found[1::2].sum())]


def test_a_round_moves_the_weights_as_the_equation_says():
    """Two arms with weights 0, and one of share 0.25 whose progress is the greatest so far, so that its reward is 1."""
    arms = Arms(np.zeros(2), np.zeros(2), round=4, progress=[0.0] * 9)
    arms.play(1, 0.7, np.array([0.75, 0.25]), Exp3S(eta=0.5, beta=0.1))
    grown = [0.5 * 0.1 / 0.75, 0.5 * (1 + 0.1) / 0.25]
    weights = [log(0.75 * exp(grown[n]) + 0.25 * exp(grown[1 - n])) for n in range(2)]
    assert arms.weights - arms.weights[0] == pytest.approx(np.array(weights) - weights[0])
    assert arms.round == 5
    part = exp(weights[1]) / (exp(weights[0]) + exp(weights[1]))
    assert arms.shares(0.1)[1] == pytest.approx(0.9 * part + 0.05)


def test_progress_is_scaled_between_its_quantiles():
    arms = Arms(np.zeros(2), np.zeros(2), progress=[0.0, 1.0, 2.0, 3.0, 4.0])  # 20% at 0.8, 80% at 3.2
    assert [arms._scaled(value) for value in (-5, 0.8, 2.0, 2.6, 9)] == pytest.approx([-1, -1, 0, 0.5, 1])
    even = Arms(np.zeros(2), np.zeros(2), progress=[2.0] * 9)
    assert [even._scaled(value) for value in (1.9, 2.0, 2.1)] == [-1, 0, 1]


def test_an_arm_that_is_solved_better_than_before_is_drawn_more():
    config = Exp3S(by="tag", eta=0.2, epsilon=0.1, base=EVEN)
    assert shares(after(config, {0: [0, 0], 1: [0, 0]})) == pytest.approx([0.5, 0.5])  # nothing to compare with
    steps = [{0: [0, 0, 0], 1: [0, 0, 0]}, {0: [0, 0, 0], 1: [0, 0, 1]}, {0: [0, 0, 0], 1: [0, 1, 1]}]
    curriculum = after(config, *steps)
    assert curriculum.arms.progress == pytest.approx([0, 1 / 3, 0, 1 / 3])
    assert curriculum.arms.round == 6
    weights, share = np.zeros(2), 0.5  # the rewards are 0, then 1, by the quantiles of the progress so far, -1 and 1
    for number, (arm, reward) in enumerate([(0, 0), (1, 1), (0, -1), (1, 1)], start=2):
        grown = weights.copy()
        grown[arm] += 0.2 * reward / (share if arm else 1 - share)
        weights = np.log((1 - 1 / number) * np.exp(grown) + np.exp(grown[::-1]) / number)
        if number == 3:  # the end of a step
            share = 0.9 * exp(weights[1]) / np.exp(weights).sum() + 0.05
    expected = 0.9 * exp(weights[1]) / np.exp(weights).sum() + 0.05
    assert expected > 0.58
    assert shares(curriculum)[1] == pytest.approx(expected)
    assert sum(shares(curriculum)) == pytest.approx(1)
    assert curriculum.arms.last.tolist() == pytest.approx([0, 2 / 3])


def test_the_reward_of_an_arm_is_the_mean_of_its_episodes_in_a_step():
    curriculum = after(Exp3S(base=EVEN), {0: [1, 1], 2: [0, 0, 0, 0, 0, 1]})
    assert curriculum.arms.last[0] == pytest.approx(3 / 8)
    observe(curriculum, played(curriculum.history.drawn(4), [1], origin="experts"))
    assert curriculum.arms.last[0] == pytest.approx(3 / 8)  # demonstrations say nothing of the policy


def test_progress_may_be_counted_by_token():
    """Each made-up episode has one turn; progress of 1 over the mean number of its tokens."""
    curriculum = after(Exp3S(base=EVEN, per_token=True), {0: [0, 0]}, {0: [1, 1]})
    tokens = float(curriculum.history.of.tokens[0]) / 4
    assert tokens > 1
    assert curriculum.arms.progress == pytest.approx([1 / tokens])


def test_a_single_arm_takes_all():
    curriculum = after(Exp3S(by="world", base=EVEN), {0: [0]}, {0: [1]}, {0: [0]})
    assert curriculum.arms.shares(0.05).tolist() == [1.0]
    assert curriculum.probabilities().sum() == pytest.approx(1)


def test_a_restored_bandit_goes_on_as_one_that_was_not_interrupted():
    config = Exp3S(base=EVEN, eta=0.3)
    first = after(config, {0: [0, 0], 1: [0, 1]}, {0: [1, 0], 1: [0, 0]})
    second = config.bind(TASKS, 0)
    second.restore(first.state())
    for curriculum in (first, second):
        observe(curriculum, played(curriculum.history.drawn(0), [1, 1]))
    assert shares(second) == shares(first)
    assert shares(first) != pytest.approx([0.5, 0.5])


def test_it_is_no_base_of_another_as_it_has_a_memory_of_its_own():
    with pytest.raises(ValueError, match="base = Exp3S draws tasks in an order of its own"):
        Balanced(base=Exp3S())  # type: ignore[arg-type]
