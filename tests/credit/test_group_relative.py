"""Estimators against small examples worked by hand from their equations."""

from dataclasses import replace

import numpy as np
import pytest
from cases import by_turn, of_episodes, paid, trajectory
from cases import group as group_of
from made import group, score
from made import trajectory as drawn

from sojourn.credit.constant import Constant
from sojourn.credit.grpo import GRPO
from sojourn.credit.normalised import Normalised
from sojourn.credit.papers.mars import MARS
from sojourn.credit.papers.rae import RAE
from sojourn.credit.reinforce import Reinforce
from sojourn.credit.reinforce_pp import ReinforcePP
from sojourn.credit.rloo import RLOO
from sojourn.credit.whitened import Whitened
from sojourn.types import Credit, Score


def one_group(totals):
    rng = np.random.default_rng(0)
    made = group([drawn(rng) for _ in totals])
    return [made], [[score(t, r) for t, r in zip(made.trajectories, totals, strict=True)]]


def firsts(credits: list[Credit]) -> list[float]:
    for credit in credits:
        assert len({float(x) for turn in credit.tokens for x in turn}) == 1
    return [float(credit.tokens[0][0]) for credit in credits]


def test_grpo_by_hand():
    groups, scores = one_group([1.0, 0.0, 0.0, 1.0])
    assert firsts(GRPO(epsilon=0.0)(groups, scores, {})[0]) == pytest.approx([1, -1, -1, 1])
    groups, scores = one_group([3.0, 0.0, 0.0])  # mean 1, variance (4 + 1 + 1) / 3 = 2
    assert firsts(GRPO(epsilon=0.0)(groups, scores, {})[0]) == pytest.approx([2 / 2**0.5, -1 / 2**0.5, -1 / 2**0.5])
    assert firsts(GRPO(scale_by_std=False)(groups, scores, {})[0]) == pytest.approx([2, -1, -1])


def test_rloo_by_hand():
    groups, scores = one_group([3.0, 0.0, 0.0])
    assert firsts(RLOO()(groups, scores, {})[0]) == pytest.approx([3, -1.5, -1.5])


def test_a_group_of_one_or_of_equals_teaches_nothing():
    for totals in ([5.0], [2.0, 2.0, 2.0]):
        groups, scores = one_group(totals)
        for estimator in (GRPO(), GRPO(scale_by_std=False), RLOO()):
            assert firsts(estimator(groups, scores, {})[0]) == pytest.approx([0.0] * len(totals))


def test_reinforce_by_hand():
    rng = np.random.default_rng(0)
    made = group([drawn(rng), drawn(rng)])
    scores = [[Score(np.array([1.0, 0.0, 2.0], dtype=np.float32)), Score(np.array([0.0, 0.0, 0.0], dtype=np.float32))]]
    credit = Reinforce(discount=0.5, baseline="none")([made], scores, {})[0]
    assert [float(turn[0]) for turn in credit[0].tokens] == pytest.approx([1.5, 1.0, 2.0])
    credit = Reinforce(discount=0.5)([made], scores, {})[0]  # the means are 0.75, 0.5 and 1
    assert [float(turn[0]) for turn in credit[0].tokens] == pytest.approx([0.75, 0.5, 1.0])
    assert [float(turn[0]) for turn in credit[1].tokens] == pytest.approx([-0.75, -0.5, -1.0])


def test_reinforce_does_not_punish_the_last_turns_of_a_win():
    """Half of the return is paid at each turn, so that less and less is left; a win of two turns, and another lost."""
    won, lost = trajectory([2, 1]), trajectory([1, 1])
    made, scores = [group_of(won, won, lost)], [paid([0.5, 0.5], [0.5, 0.5], [0, 0])]
    [credit] = Reinforce()(made, scores, {})
    assert by_turn(credit) == [pytest.approx(values) for values in ([1 / 3, 1 / 6], [1 / 3, 1 / 6], [-2 / 3, -1 / 3])]
    [alone] = Reinforce()([group_of(won, won)], [paid([0.5, 0.5], [0.5, 0.5])], {})
    assert by_turn(alone) == [[0, 0], [0, 0]]


def test_reinforce_compares_turns_of_the_same_number_seat_and_world():
    """A long play's last turn has no other beside it. The seats are paid 3 and 1, and the groups are of one world."""
    first, second = (trajectory([1], agent=name) for name in ("first", "second"))
    groups = [of_episodes([[first, second]]), of_episodes([[trajectory([1, 1], agent="first"), second]], slot=1)]
    scores = [paid([3], [1]), paid([0, 1], [-1])]
    found = [by_turn(credit) for credit in Reinforce()(groups, scores, {})]
    assert found == [[pytest.approx([1]), pytest.approx([1])], [pytest.approx([-1, 0]), pytest.approx([-1])]]
    alone = [by_turn(credit) for credit in Reinforce(baseline="group")(groups, scores, {})]
    assert alone == [[[0], [0]], [[0, 0], [0]]]
    elsewhere = replace(groups[1], task=replace(groups[1].task, env="another"))
    assert [by_turn(credit) for credit in Reinforce()([groups[0], elsewhere], scores, {})] == alone


def test_constant_filters_by_return():
    groups, scores = one_group([1.0, 0.0])
    assert firsts(Constant(value=2.0)(groups, scores, {})[0]) == [2.0, 2.0]
    assert firsts(Constant(threshold=0.5)(groups, scores, {})[0]) == [1.0, 0.0]


@pytest.mark.parametrize(
    "estimator", [GRPO(), ReinforcePP(), Normalised(base=ReinforcePP()), Normalised(base=RAE()), Whitened(base=RAE())]
)
def test_returns_that_are_equal_but_for_rounding_teach_nothing(estimator):
    """Three times 33.3 is not 99.9 in 32 bits, and what divides by a deviation would make 1 of such a difference."""
    made, scores = group_of(trajectory([1, 1, 1]), trajectory([1])), paid([33.3, 33.3, 33.3], [99.9])
    assert scores[0].total != scores[1].total
    [credit] = estimator([made], [scores], {})
    assert by_turn(credit) == [pytest.approx([0] * 3, abs=1e-4), pytest.approx([0], abs=1e-4)]


def test_what_is_all_alike_is_not_divided_by_what_is_left_of_its_deviation():
    made, scores = group_of(trajectory([1]), trajectory([2])), paid([1], [1])
    [credit] = Whitened(base=Constant(), shift_mean=False)([made], [scores], {})
    assert by_turn(credit) == [[1], [1]]


def test_returns_that_are_equal_but_for_rounding_are_one_value():
    made, scores = group_of(*(trajectory([1]) for _ in range(3))), paid([99.8999939], [99.9000015], [0])
    [credit] = MARS()([made], [scores], {})
    assert by_turn(credit) == [pytest.approx([49.95]), pytest.approx([49.95]), pytest.approx([-49.95])]
