"""Estimators for planners and for those that foresee, against small examples worked by hand."""

from dataclasses import replace

import pytest
from cases import by_turn, group, of_episodes, paid, trajectory

from sojourn.credit.among_models import of_model
from sojourn.credit.grpo import GRPO
from sojourn.credit.papers.dyna_grpo import DynaGRPO
from sojourn.credit.papers.foresight import Foresight


def pair(plans, acts, states):
    """The trajectories of a planner, which says so much a turn, and of its executor, in states of these names."""
    planner = trajectory([1] * plans, states=list(states[:plans]), agent="planner")
    return planner, trajectory([2] * acts, states=[f"{state}!" for state in states[:acts]], agent="executor")


def test_a_planner_is_paid_for_what_was_carried_out():
    """In s the planner has 0.5 + 2 (1), 0.5 + 2 (0) and 0 + 2 (1), of mean 5/3 and deviation sqrt(13 / 18)."""
    made = of_episodes([pair(1, 1, "s") for _ in range(3)])
    scores = paid([0.5], [1], [0.5], [0], [0], [1])
    [credit] = Foresight(execution_coef=2.0, epsilon=0.0)([made], [scores], {})
    first, second, third = (by_turn(credit)[n][0] for n in (0, 2, 4))
    assert (first, second, third) == pytest.approx((0.9806, -1.3728, 0.3922), abs=1e-4)
    done = [by_turn(credit)[n][0] for n in (1, 3, 5)]
    assert done == pytest.approx([0.5**0.5, -(2**0.5), 0.5**0.5])
    [credit] = Foresight(execution_coef=0.0, epsilon=0.0)([made], [scores], {})
    assert by_turn(credit)[0][0] == pytest.approx(0.5**0.5)


def test_the_nth_turn_carries_out_the_nth():
    """Both meet in s and t: the first is carried out in t alone, the second in s alone, and no later reward counts."""
    made = of_episodes([pair(2, 2, "st"), pair(2, 2, "st")])
    [credit] = Foresight(epsilon=0.0)([made], [paid([0, 0], [0, 1], [0, 0], [1, 0])], {})
    assert by_turn(credit) == [pytest.approx([-1, 1])] * 2 + [pytest.approx([1, -1])] * 2


def test_a_subgoal_that_nobody_carried_out_has_its_own_reward():
    made = of_episodes([pair(2, 1, "st"), pair(2, 2, "st")])
    [credit] = Foresight(epsilon=0.0)([made], [paid([0, 0.5], [1], [0, 0], [1, 1])], {})
    assert by_turn(credit)[0] == pytest.approx([0, -1])  # 0 + 1 against 0 + 1, then 0.5 against 0 + 1
    assert by_turn(credit)[2] == pytest.approx([0, 1])


def test_only_the_executor_of_the_same_episode_counts():
    """The first episode's never acts, the second's comes before its planner; a state met once teaches nothing."""
    made = of_episodes([pair(1, 0, "s"), pair(1, 1, "s")[::-1], pair(1, 1, "z")])
    [credit] = Foresight(epsilon=0.0)([made], [paid([1], [], [0.5], [0], [0], [9])], {})
    assert by_turn(credit) == [[pytest.approx(1)], [], [0], [pytest.approx(-1)], [0], [0]]


def test_the_executor_may_be_another_model_trained_or_not():
    """As an executor of the same model, where the one that is not trained has its rewards from the world."""
    rewards = ([0.5], [1], [0.5], [0], [0], [1])
    made = of_episodes([pair(1, 1, "s") for _ in range(3)])
    [expected] = Foresight(epsilon=0.0)([made], [paid(*rewards)], {})
    planners = [by_turn(expected)[n] for n in (0, 2, 4)]
    other = of_episodes([(p, replace(e, model="small")) for p, e in (pair(1, 1, "s") for _ in range(3))])
    own = of_episodes([(e.trajectories[0],) for e in other.episodes])
    credit_of = of_model("policy", Foresight(epsilon=0.0), [other], [paid(*rewards)])
    [found] = credit_of([own], [paid(*rewards[::2])], {})
    assert by_turn(found) == planners

    def untrained(executor, reward):
        return replace(executor, trainable=False, turns=(replace(executor.turns[0], reward=reward),))

    pairs = zip((pair(1, 1, "s") for _ in range(3)), rewards[1::2], strict=True)
    frozen = [(planner, untrained(executor, reward)) for (planner, executor), [reward] in pairs]
    [found] = Foresight(epsilon=0.0)([of_episodes(frozen)], [paid(*rewards[::2])], {})
    assert by_turn(found) == planners


def refined(won, turns=2):
    """Only its second turn says that it was refined; whether it won is said last."""
    infos = [{}] + [{"refined": 1.0, "success": float(won)}] * (turns - 1)
    return trajectory([1] * turns, infos=infos)


def test_what_was_refined_must_win_and_beat_both_means():
    """Plain: 1, 0, of mean 0.5; refined: 0.9, 0.6, 0.7, 0.2, of mean 0.6, the third of which did not win."""
    plain = [trajectory([2]), trajectory([3])]
    made = group(*plain, *(refined(won) for won in (True, True, False, True)))
    [credit] = DynaGRPO(epsilon=0.0)([made], [paid([1], [0], [0, 0.9], [0, 0.6], [0, 0.7], [0, 0.2])], {})
    assert by_turn(credit) == [[1], [-1], [1, 1], [0, 0], [0, 0], [0, 0]]
    [credit] = DynaGRPO()([made], [paid([9], [1], [0, 0.9], [0, 0.6], [0, 0.7], [0, 0.2])], {})
    assert by_turn(credit)[2:] == [[0, 0]] * 4  # the plain ones' mean is 5


def test_refined_alone_or_all_alike_have_nothing_to_beat():
    for rewards in ([0.1], [0.1] * 3, [0.7] * 7):
        made = group(*(refined(True) for _ in rewards))
        [credit] = DynaGRPO()([made], [paid(*([0, reward] for reward in rewards))], {})
        assert by_turn(credit) == [[0, 0]] * len(rewards)
    made = group(refined(True), trajectory([1]))
    [credit] = DynaGRPO()([made], [paid([0, 1], [0])], {})
    assert by_turn(credit) == [[0, 0], [0]]  # not above its own mean


def test_seats_are_refined_apart():
    made = of_episodes([[refined(True), trajectory([1], agent="other")] for _ in range(2)])
    [credit] = DynaGRPO(epsilon=0.0)([made], [paid([0, 1], [5], [0, 0], [9])], {})
    assert by_turn(credit) == [[1, 1], [-1], [0, 0], [1]]


def test_without_refined_ones_it_is_grpo():
    made = group(trajectory([1, 2]), trajectory([1]), trajectory([3], infos=[{"refined": 0.0}]))
    scores = [paid([0, 1], [0.25], [0])]
    assert by_turn(DynaGRPO()([made], scores, {})[0]) == by_turn(GRPO()([made], scores, {})[0])
    marked = group(*(trajectory([1], infos=[{"tried": 1.0, "success": 1.0}]) for _ in range(2)))
    assert by_turn(DynaGRPO(info_key="tried")([marked], [paid([1], [0])], {})[0]) == [[1], [0]]


def test_states_that_are_not_known_are_compared_with_none():
    """As of imported turns: a planner and an executor that did well would be compared with what was done elsewhere."""
    both = trajectory([1], agent="planner"), trajectory([1], agent="executor")
    [credit] = Foresight()([of_episodes([both, both])], [paid([1], [0], [0], [1])], {})
    assert by_turn(credit) == [[0], [0], [0], [0]]
