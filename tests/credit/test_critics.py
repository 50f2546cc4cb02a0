"""Estimators that rest on a critic, against small examples worked by hand from their equations."""

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from cases import by_token, by_turn, group, paid, stream, trajectory

from sojourn.credit.constant import Constant
from sojourn.credit.gae import GAE
from sojourn.credit.grpo import GRPO
from sojourn.credit.kl_reward import KLReward
from sojourn.credit.normalised import Normalised
from sojourn.credit.papers.bcoder import BCoder
from sojourn.credit.papers.bilevel_gae import BilevelGAE
from sojourn.credit.papers.positive import Positive
from sojourn.credit.process import Process
from sojourn.credit.reinforce import Reinforce
from sojourn.credit.self_imitation import SelfImitation
from sojourn.credit.turn_gae import TurnGAE
from sojourn.credit.whitened import Whitened
from sojourn.types import Credit, Ending, Score


def credited(estimator, values, rewards, ending=Ending.DONE, after=0.0, **streams) -> Credit:
    """Of one trajectory whose turns have these values before each token."""
    one = replace(trajectory([len(turn) for turn in values]), ending=ending)
    ahead = [[0.0] * (len(turn) - 1) + [after] * bool(turn) for turn in values]
    known = {"values": stream([values]), "next_values": stream([ahead])}
    known |= {name: stream([column]) for name, column in streams.items()}
    [[credit]] = estimator([group(one)], [paid(rewards)], known)
    return credit


def learnt(credit: Credit) -> list[list[float]]:
    return [[round(float(x), 6) for x in turn] for turn in credit.targets]


def approx(*turns):
    return [pytest.approx(turn, abs=1e-4) for turn in turns]


VALUES = [[0.5, 0.6, 0.4, 0.7, 0.8]]


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (1.0, [0.5, 0.4, 0.6, 0.3, 0.2]),
        (0.95, [0.4294, 0.3467, 0.5755, 0.29, 0.2]),
        (0.5, [0.1, 0.0, 0.4, 0.2, 0.2]),
    ],
)
def test_gae_by_hand(lam, expected):
    credit = credited(GAE(lam=lam), VALUES, [1.0])
    assert by_token([credit]) == approx(expected)
    assert learnt(credit) == approx(np.add(expected, VALUES[0]))


def test_a_critic_with_a_lambda_of_its_own_learns_the_return():
    credit = credited(GAE(lam=0.5, critic_lam=1.0), VALUES, [1.0])
    assert by_token([credit]) == approx([0.1, 0.0, 0.4, 0.2, 0.2])
    assert learnt(credit) == approx([1.0] * 5)


def test_lambda_by_length():
    values = [[0.1 * (n % 7) for n in range(40)]]
    adaptive, plain = (credited(e, values, [1.0]) for e in (GAE(alpha=0.05), GAE(lam=0.5)))
    assert by_token([adaptive]) == by_token([plain])
    short = credited(GAE(alpha=0.05), VALUES, [1.0])  # 1 - 1 / (0.05 * 5) is below 0
    assert by_token([short]) == by_token([credited(GAE(lam=0.0), VALUES, [1.0])])


def test_action_decomposition_by_hand():
    """POAD: nothing is discounted inside a turn, and lambda holds at every token."""
    values, rewards = [[0.2, 0.3, 0.4], [0.5, 0.6]], [0.0, 1.0]
    credit = credited(GAE(discount=0.95, token_discount=1.0, lam=0.95), values, rewards)
    assert by_turn_tokens(credit) == approx([0.65365, 0.58279, 0.5082], [0.48, 0.4])
    assert learnt(credit) == approx([0.85365, 0.88279, 0.9082], [0.98, 1.0])
    naive = credited(GAE(discount=0.95, token_discount=0.95, lam=0.95), values, rewards)
    assert by_turn_tokens(naive) == approx([0.53511, 0.49874, 0.46398], [0.431, 0.4])


def by_turn_tokens(credit):
    return [turn.tolist() for turn in credit.tokens]


def test_a_penalty_of_every_token():
    sampled = -1.0  # of every token made up
    reference = [[sampled - 0.2, sampled + 0.1, sampled - 0.4]]
    zeros = [[0.0] * 3]
    credit = credited(GAE(kl_coef=0.05, lam=0.0), zeros, [0.8], ref_logprobs=reference)
    assert by_token([credit]) == approx([-0.01, 0.005, 0.78])
    assert GAE(kl_coef=0.05).needs == {"values", "next_values", "ref_logprobs"}


def test_turns_by_hand():
    values = [[0.3, 9.0], [0.5], [0.8, 9.0, 9.0]]  # what is said after the first token changes nothing
    credit = credited(TurnGAE(discount=0.99, lam=0.99), values, [0, 0, 1])
    assert by_turn([credit]) == [pytest.approx([0.67331, 0.48802, 0.2], abs=1e-4)]
    assert [turn[0] for turn in learnt(credit)] == pytest.approx([0.97331, 0.98802, 1.0], abs=1e-4)
    assert [np.isnan(turn[1:]).all() for turn in credit.targets] == [True] * 3
    credit = credited(TurnGAE(discount=0.9, lam=0.95), [[0.2], [0.5]], [0, 1])
    assert by_turn([credit]) == [pytest.approx([0.6775, 0.5])]
    assert learnt(credit) == approx([0.8775], [1.0])


def test_return_less_value():
    """Odysseus: discounted return-to-go less the critic's value, which learns that return."""
    credit = credited(TurnGAE(discount=0.95, lam=1.0), [[2.0], [2.5], [1.0]], [1, 0, 2])
    assert by_turn([credit]) == [pytest.approx([0.805, -0.6, 1.0])]
    assert learnt(credit) == approx([2.805], [1.9], [2.0])


def test_positive_by_hand():
    filtered = credited(Positive(min_std=1e-6), [[2.0], [2.5], [1.0]], [1, 0, 2])
    deviation = np.std([0.805, 1.0])
    assert by_turn([filtered]) == [pytest.approx([0.805 / deviation, 0.0, 1.0 / deviation], rel=1e-4)]
    assert learnt(filtered) == approx([2.805], [1.9], [2.0])
    floored = credited(Positive(min_std=0.5), [[2.0], [2.5], [1.0]], [1, 0, 2])
    assert by_turn([floored]) == [pytest.approx([1.61, 0.0, 2.0])]
    nothing = credited(Positive(), [[2.0]], [1.0])
    assert by_turn([nothing]) == [[0.0]]


def test_self_imitation_by_hand():
    """Returns 0.9, 1 and 0 from the turns on: the critic expected less of the first alone, and learns that return."""
    credit = credited(SelfImitation(baseline="critic", discount=0.9), [[0.5, 9.0], [1.5], [0.2]], [0, 1, 0])
    assert by_turn([credit]) == [pytest.approx([0.4, 0.0, 0.0])]
    assert credit.targets is not None
    assert credit.targets[0].tolist() == pytest.approx([0.9, np.nan], nan_ok=True)
    assert all(np.isnan(turn).all() for turn in credit.targets[1:])
    bounded = credited(SelfImitation(baseline="critic", max_advantage=0.3), [[0.5]], [1.0])
    assert by_turn([bounded]) == [pytest.approx([0.3])]


def test_self_imitation_of_a_group_by_hand():
    """Returns 1, 0 and 0.5 have the mean 0.5; after the first reward of 0.2, there are 0.8 to come."""
    three = group(trajectory([1, 2]), trajectory([1]), trajectory([2]))
    [credit] = SelfImitation()([three], [paid([0.2, 0.8], [0.0], [0.5])], {})
    assert by_turn(credit) == [pytest.approx([0.5, 0.3]), [0.0], [0.0]]
    assert all(one.targets is None for one in credit)
    assert SelfImitation().needs == frozenset()
    assert SelfImitation(baseline="critic").needs == {"values"}


def test_both_levels_by_hand():
    """The example of RAGEN's own test, and one in which the first turn is paid nothing."""
    values = [[0.1, 0.2, 0.3, 0.4, 0.5], [0.6, 0.7, 0.8, 0.9, 1.0]]
    credit = credited(BilevelGAE(discount=0.95), values, [1, 1])
    assert by_turn_tokens(credit) == approx([1.85, 1.75, 1.65, 1.55, 1.45], [0.4, 0.3, 0.2, 0.1, 0.0])
    assert learnt(credit) == approx([1.95] * 5, [1.0] * 5)
    credit = credited(BilevelGAE(discount=0.95, lam=0.9, token_lam=0.9), [[0.2, 0.4], [0.5, 0.7]], [0, 1])
    assert by_turn_tokens(credit) == approx([0.66935, 0.5215], [0.47, 0.3])
    assert learnt(credit) == approx([0.86935, 0.9215], [0.97, 1.0])


@pytest.mark.parametrize("estimator", [GAE(lam=0.9), TurnGAE(discount=1.0, lam=0.9), BilevelGAE(discount=1.0, lam=0.9)])
def test_one_token_a_turn_is_the_same_at_every_level(estimator):
    values, rewards = [[0.3], [0.1], [0.6]], [0.5, 0.0, 1.0]
    assert by_token([credited(estimator, values, rewards)]) == by_token([credited(GAE(lam=0.9), values, rewards)])


@pytest.mark.parametrize("estimator", [GAE, TurnGAE, BilevelGAE])
def test_what_was_cut_off_goes_on_with_the_critics_value(estimator):
    values = [[0.3], [0.1]]
    ended, cut, still = (
        by_token([credited(estimator(discount=1.0, bootstrap=b), values, [0, 0], e, after=0.7)])[0]
        for b, e in ((True, Ending.DONE), (True, Ending.TURNS), (False, Ending.TURNS))
    )
    assert still == ended
    assert np.subtract(cut, ended)[-1] == pytest.approx(0.7)


def test_a_turn_without_tokens_has_the_next_ones_value():
    said = credited(TurnGAE(discount=1.0, lam=0.5), [[0.3], [], [0.6]], [0, 0.25, 1])
    # the differences are 0.6 - 0.3, 0.25 + 0.6 - 0.6 and 1 - 0.6
    assert [turn.tolist() for turn in said.tokens] == approx([0.3 + 0.5 * (0.25 + 0.5 * 0.4)], [], [0.4])
    token = credited(GAE(lam=0.0), [[0.3], [], [0.6]], [0, 0.25, 1])
    assert by_turn_tokens(token) == approx([0.25 + 0.6 - 0.3], [], [0.4])


def test_turns_without_tokens_discount_as_other_turns_do():
    """Of tokens, too: a reward three turns later counts for a half to the power of three, one at an empty turn less."""
    for estimator in (GAE(discount=0.5, lam=1.0), TurnGAE(discount=0.5, lam=1.0)):
        said = credited(estimator, [[0.0, 0.0], [], [], [0.0]], [0, 0, 0, 1])
        assert [turn.tolist() for turn in said.tokens] == approx([0.125, 0.125], [], [], [1])
        said = credited(estimator, [[0.0], [], [], [0.0]], [0, 1, 1, 0])
        assert [turn.tolist() for turn in said.tokens] == approx([0.75], [], [], [0])


def test_normalised_by_hand():
    """Returns 1, 2, 3, 6 so far: mean 3, deviation of the sample sqrt(14 / 3); turn by turn, then bounded."""
    made, estimator = (
        group(*(trajectory([1, 1]) for _ in range(2))),
        Normalised(base=Reinforce(baseline="none"), clip=1.2),
    )
    estimator([made], [paid([0, 1], [1, 1])], {})
    [credit] = estimator([made], [paid([1, 2], [2, 4])], {})
    scale = math.sqrt(3 / 14)
    assert by_turn(credit) == approx([0.0, -1 * scale], [1.2, 1.2 - 2 * scale])
    again = Normalised(base=Reinforce(baseline="none"), clip=1.2)
    again.restore(json.loads(json.dumps(estimator.state())))
    for one in (estimator, again):
        [credit] = one([made], [paid([0, 0], [0, 1])], {})
    assert again.state() == estimator.state()
    [same] = Normalised(base=Reinforce(baseline="none"))([made], [paid([0, 1], [1, 0])], {})
    assert by_turn(same) == approx([0.0, 0.0], [0.0, 0.0])


def test_a_conservative_operator_by_hand():
    """The first policy would go on with a token of advantage -1 where the critic says 0.4: 0.999 (0.4 - 1)."""
    values, gaps = [[0.3, 0.4]], [[-0.5, -1.0]]
    credit = credited(BCoder(), values, [1.0], greedy_gap=gaps)
    assert learnt(credit) == approx([-0.5994, 1.0])
    assert by_token([credit]) == [[1.0, 1.0]]
    cut = credited(BCoder(discount=0.5), values, [-1.0], Ending.TURNS, after=0.7, greedy_gap=gaps)
    assert learnt(cut) == approx([0.5 * (0.4 - 1), -1 + 0.5 * 0.7])
    assert by_token([cut]) == [[0.0, 0.0]]


def test_targets_pass_through_what_changes_advantages():
    values, rewards = [[0.3], [0.1], [0.6]], [0.5, 0.0, 1.0]
    plain = credited(GAE(), values, rewards)
    moved = credited(Whitened(base=GAE()), values, rewards)
    assert learnt(moved) == learnt(plain)
    assert by_token([moved]) != by_token([plain])
    assert Whitened(base=GAE()).provides == {"targets"}
    assert Whitened(base=Constant()).provides == frozenset()


NEVER = Score(np.zeros(0, dtype=np.float32), outcome=1.0)  # of a seat that never acted


def test_what_a_seat_that_never_acted_was_given_is_compared_in_the_same_units():
    made, scores = group(trajectory([1]), trajectory([]), trajectory([1])), [*paid([1]), NEVER, *paid([0])]
    base = GRPO(scale_by_std=False)
    [credit] = Normalised(base=base)([made], [scores], {})
    deviation = np.std([1, 1, 0], ddof=1)
    assert by_turn(credit) == [
        pytest.approx([1 / 3 / deviation], abs=1e-4),
        [],
        pytest.approx([-2 / 3 / deviation], abs=1e-4),
    ]
    nothing = {"progress": stream([[[0.0]], [], [[0.0]]])}
    [credit] = Process(outcome_coef=10.0, base=base)([made], [scores], nothing)
    assert by_turn(credit) == [pytest.approx([10 / 3]), [], pytest.approx([-20 / 3])]
    [credit] = SelfImitation()([made], [scores], {})
    assert by_turn(credit) == [pytest.approx([1 / 3]), [], [0]]


def test_penalties_and_shaping_of_an_estimator_are_no_part_of_the_outcome():
    seen: list[Score] = []

    @dataclass(frozen=True)
    class Base:
        needs = frozenset[str]()

        def __call__(self, groups, scores, streams):
            seen.extend(scores[0])
            return Constant()(groups, scores, streams)

    made = [group(trajectory([1]))]
    streams = {"progress": stream([[[0.5]]]), "ref_logprobs": stream([[[-3.0]]])}
    for wrapper in (Process(base=Base()), KLReward(base=Base()), Normalised(base=Base())):
        wrapper(made, [paid([1])], streams)
    assert [one.result for one in seen] == [1, 1, 1]
