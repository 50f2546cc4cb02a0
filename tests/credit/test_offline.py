"""Estimators for recorded episodes, against small examples worked by hand."""

import math
from dataclasses import replace

import pytest
from cases import by_turn, group, paid, stream, trajectory

from sojourn.credit.awr import AWR
from sojourn.credit.best_of_n import BestOfN
from sojourn.credit.papers.archer import Archer
from sojourn.credit.papers.digirl import DigiRL
from sojourn.credit.reinforce import Reinforce
from sojourn.credit.turn_gae import TurnGAE
from sojourn.credit.whitened import Whitened
from sojourn.errors import ConfigError

TO_GO = Reinforce(baseline="none")


def test_awr_by_hand():
    """Returns to go 1, 1 and -0.5, -0.5 at beta 0.5: e^2 = 7.39 each, and e^-1 = 0.37."""
    made = [group(trajectory([2, 1]), trajectory([1, 1]))]
    [credit] = AWR(base=TO_GO, beta=0.5)(made, [paid([0, 1], [0, -0.5])], {})
    assert by_turn(credit) == [pytest.approx([math.e**2] * 2, rel=1e-5), pytest.approx([math.exp(-1)] * 2, rel=1e-5)]


def test_awr_scaled_by_what_each_turn_was_told_by_hand():
    """Returns to go of 1 and 0.5 at the balances 0 and 3, and beta 2: e^0 = 1, and e^(3 * 0.5 / 2) = 2.12."""
    first, second = trajectory([1]), trajectory([1])
    told = [replace(t, turns=(replace(t.turns[0], info={"balance": b}),)) for t, b in ((first, 0.0), (second, 3.0))]
    [credit] = AWR(base=TO_GO, beta=2.0, scale="balance")([group(*told)], [paid([1], [0.5])], {})
    assert by_turn(credit) == [[pytest.approx(1)], [pytest.approx(math.exp(0.75), rel=1e-5)]]
    with pytest.raises(ConfigError, match=r"awr.scale = 'balance': a turn has the numbers none: expected one that"):
        AWR(base=TO_GO, scale="balance")([group(first)], [paid([1])], {})


def test_awr_never_weighs_more_than_its_clip_however_large_the_advantage():
    [credit] = AWR(base=TO_GO, beta=0.01, clip=20.0)([group(trajectory([1]))], [paid([1e6])], {})
    assert by_turn(credit) == [[pytest.approx(20)]]


def test_awr_with_normalised_advantages_by_hand():
    """Advantages 1 and -1 have mean 0 and deviation 1, 3 and -3 whitened are the same: e and 1/e."""
    made = [group(trajectory([1]), trajectory([1]))]
    whitened = Whitened(base=TO_GO, level="turn")
    [credit] = AWR(base=whitened)(made, [paid([3], [-3])], {})
    assert by_turn(credit) == [[pytest.approx(math.e, rel=1e-4)], [pytest.approx(1 / math.e, rel=1e-4)]]


def test_awr_leaves_its_critic_its_targets_and_asks_for_what_its_base_needs():
    base = TurnGAE(discount=1.0, lam=1.0)
    known = {"values": stream([[[0.25], [0.5]]]), "next_values": stream([[[0.0], [0.0]]])}
    made = [group(trajectory([1, 1]))]
    [[plain]], [[weighted]] = (e(made, [paid([0, 1])], known) for e in (base, AWR(base=base)))
    assert by_turn([weighted]) == [pytest.approx([math.exp(0.75), math.exp(0.5)], rel=1e-5)]
    assert [turn.tolist() for turn in weighted.targets] == [turn.tolist() for turn in plain.targets] == [[1], [1]]
    assert AWR().needs == {"values", "next_values"}
    assert AWR().provides == {"targets"}


def test_implicit_q_learnings_extraction_by_hand():
    """Q - V of 0.2 and -0.1 at an inverse temperature of 10."""
    known = {"utterance_advantage": stream([[[0.0, 0.2], [-0.1]]])}
    [credit] = AWR(base=Archer(), beta=0.1, clip=100)([group(trajectory([2, 1]))], [paid([0, 1])], known)
    assert by_turn(credit) == [pytest.approx([math.exp(2), math.exp(-1)], rel=1e-5)]


def digirl(estimator, values, rewards, expected):
    """Of trajectories in one group, of one token a turn."""
    made = [group(*(trajectory([1] * len(turns)) for turns in values))]
    known = {"values": stream([[[v] for v in turns] for turns in values])}
    known["next_values"] = stream([[[0.0] for _ in turns] for turns in values])
    known["instruction_value"] = stream([[[e] for _ in turns] for turns, e in zip(values, expected, strict=True)])
    [credit] = estimator(made, [paid(*rewards)], known)
    return by_turn(credit), [[float(turn[0]) for turn in one.targets] for one in credit]


def test_digirls_steps_by_hand():
    """.5 - .6 + 0 + .9, 0 - .5 + 1 + 1 of a success; .3 - .2 + 0, 0 - .3 of a failure, over .05."""
    passed, targets = digirl(DigiRL(fraction=1.0), [[0.6, 0.5], [0.2, 0.3]], [[0, 1], [0, 0]], [0.0, 0.0])
    assert passed == [[1, 1], [1, 0]]
    assert targets == [[1, 1], [0, 0]]
    passed, _ = digirl(DigiRL(fraction=1.0, margin=0.125), [[0.25, 0.375]], [[0, 0]], [0.0])
    assert passed == [[0, 0]]  # what is no more than the margin does not pass


def test_digirls_instructions_by_hand():
    """Outcomes 1, 1, 0 and 0 where .9, .2, .1 and .6 were expected: .1, .8, -.1 and -.6; half of them pass, and the
    critic learns from all."""
    values, rewards = [[0.0]] * 4, [[1], [1], [0], [0]]
    passed, targets = digirl(DigiRL(fraction=0.25), values, rewards, [0.9, 0.2, 0.1, 0.6])
    assert passed == [[0], [1], [0], [0]]
    assert targets == [[1], [1], [0], [0]]
    assert digirl(DigiRL(fraction=0.5), values, rewards, [0.9, 0.2, 0.1, 0.6])[0] == [[1], [1], [0], [0]]


def test_digirl_reads_the_instructions_value_only_where_it_filters():
    assert DigiRL().needs == {"values", "next_values", "instruction_value"}
    assert DigiRL(fraction=1.0).needs == {"values", "next_values"}


def test_the_best_of_n_by_hand():
    """Of Q - V of 0.1, 0.3 and 0.2 the second is learnt; of 0.03 and -0.2 none, as 0.05 is the margin."""
    made = [group(trajectory([2]), trajectory([1]), trajectory([1])), group(trajectory([1]), trajectory([1]), slot=1)]
    known = {"utterance_advantage": stream([[[0.0, 0.1]], [[0.3]], [[0.2]]], [[[0.03]], [[-0.2]]])}
    first, second = BestOfN()(made, [paid([0], [0], [0]), paid([0], [0])], known)
    assert by_turn(first) == [[0], [1], [0]]
    assert by_turn(second) == [[0], [0]]
    [_, lower] = BestOfN(margin=0.0)(made, [paid([0], [0], [0]), paid([0], [0])], known)
    assert by_turn(lower) == [[1], [0]]


def test_what_could_not_be_read_is_not_the_best():
    made = [group(trajectory([1], infos=[{"malformed": 1.0}]), trajectory([1]))]
    known = {"utterance_advantage": stream([[[0.9]], [[0.3]]])}
    [credit] = BestOfN()(made, [paid([0], [0])], known)
    assert by_turn(credit) == [[0], [1]]
