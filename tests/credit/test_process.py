"""Estimators that rest on what streams say of turns, against small examples worked by hand."""

import numpy as np
import pytest
from cases import by_turn, group, of_episodes, paid, stream, trajectory

from sojourn.credit.gae import GAE
from sojourn.credit.grpo import GRPO
from sojourn.credit.papers.archer import Archer
from sojourn.credit.papers.oprl import OPRL
from sojourn.credit.process import Process
from sojourn.credit.reinforce import Reinforce
from sojourn.credit.rloo import RLOO

TO_GO = Reinforce(baseline="none")


def test_a_streams_numbers_are_rewards_of_turns():
    """Three turns worth 0.2, 0.5 and 0.1, the sums over their tokens; the world paid 1 at the end."""
    made, known = [group(trajectory([2, 1, 2]))], {"progress": stream([[[0.0, 0.2], [0.5], [0.05, 0.05]]])}
    [credit] = Process(base=TO_GO, outcome_coef=0.0)(made, [paid([0, 0, 1])], known)
    assert by_turn(credit) == [pytest.approx([0.8, 0.6, 0.1])]
    [credit] = Process(base=TO_GO, coef=2.0)(made, [paid([0, 0, 1])], known)
    assert by_turn(credit) == [pytest.approx([2.6, 2.2, 1.2])]


def test_a_process_asks_for_its_stream_and_its_bases():
    both = Process(stream="curiosity", base=Process(stream="progress", base=GAE()))
    assert both.needs == {"curiosity", "progress", "values", "next_values"}
    assert both.provides == {"targets"}


def test_oprl_by_hand():
    """Log-ratios of turns 2, 1 and -1, -3 at beta 0.05, outcomes 1 and 0: the episode's advantage plus the turn's."""
    made = [group(trajectory([2, 1]), trajectory([1, 1]))]
    rewards = {"implicit_reward": stream([[[0.04, 0.06], [0.05]], [[-0.05], [-0.15]]])}
    estimator = OPRL(base=GRPO(epsilon=0.0), epsilon=0.0)
    [credit] = estimator(made, [paid([0, 1], [0, 0])], rewards)
    assert by_turn(credit) == [pytest.approx([2.1717, 1.6509], abs=1e-3), pytest.approx([-1.3906, -2.4321], abs=1e-3)]
    [plain] = OPRL(base=GRPO(epsilon=0.0), step_weight=0.0)(made, [paid([0, 1], [0, 0])], rewards)
    assert by_turn(plain) == [pytest.approx([1, 1]), pytest.approx([-1, -1])]


def test_oprl_leave_one_out_by_hand():
    """Rewards of turns 0.1, 0.05, -0.05, -0.15: each less the mean of the other three."""
    made = [group(trajectory([1, 1]), trajectory([1, 1]))]
    rewards = {"implicit_reward": stream([[[0.1], [0.05]], [[-0.05], [-0.15]]])}
    [credit] = OPRL(base=RLOO(), step_advantage="leave_one_out")(made, [paid([0, 1], [0, 0])], rewards)
    assert by_turn(credit)[0] == [pytest.approx(1 + 0.1 + 0.05), pytest.approx(1 + 0.05 + 0.1 / 3)]


@pytest.mark.parametrize("by", ["standardised", "leave_one_out"])
def test_oprl_compares_the_turns_of_each_seat_with_their_own_kind(by):
    """The second seat's implicit rewards are 100 more than the first's, which tells nothing of either."""
    pair = trajectory([1, 1], agent="first"), trajectory([1], agent="second")
    made = [of_episodes([pair, pair])]
    rewards = {"implicit_reward": stream([[[0.1], [0.0]], [[100.1]], [[0.0], [0.1]], [[100.0]]])}
    [credit] = OPRL(base=GRPO(), step_advantage=by)(made, [paid([0, 0], [0], [0, 0], [0])], rewards)
    turn, other = (1.0, 1.0) if by == "standardised" else (0.2 / 3, 0.1)
    expected = [[turn, -turn], [other], [-turn, turn], [-other]]
    assert by_turn(credit) == [pytest.approx(turns, abs=1e-3) for turns in expected]


def test_oprl_says_nothing_of_turns_that_are_alike():
    made, nothing = [group(trajectory([2]), trajectory([1]))], {"implicit_reward": stream([[[0.0, 0.0]], [[0.0]]])}
    [credit] = OPRL(base=GRPO(epsilon=0.0))(made, [paid([1], [0])], nothing)
    assert by_turn(credit) == [[1], [-1]]


def test_a_turns_own_advantage():
    made, known = [group(trajectory([2, 1]))], {"utterance_advantage": stream([[[0.0, -0.1], [0.25]]])}
    [credit] = Archer(coef=2.0)(made, [paid([0, 1])], known)
    assert by_turn(credit) == [pytest.approx([-0.2, 0.5])]
    assert [turn.dtype for turn in credit[0].tokens] == [np.float32] * 2
