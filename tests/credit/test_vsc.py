"""VSC-RL, against small examples worked by hand from its code."""

from dataclasses import replace

import numpy as np
import pytest
from cases import by_turn, group, paid, stream, trajectory

from sojourn.credit.papers.vsc import VSC
from sojourn.types import Ending


def credited(estimator, values, told, rewards=None, ending=Ending.DONE, after=0.0, by="subgoal"):
    """Of one trajectory of one token a turn, whose turns tell these numbers (None: nothing)."""
    infos = [{} if number is None else {by: float(number)} for number in told]
    one = replace(trajectory([1] * len(values), infos=infos), ending=ending)
    known = {"values": stream([[[v] for v in values]])}
    known["next_values"] = stream([[[0.0]] * (len(values) - 1) + [[after]]])
    [[credit]] = estimator([group(one)], [paid(rewards or [0] * len(values))], known)
    return by_turn([credit])[0], [float(turn[0]) for turn in credit.targets]


SUBGOAL = [0, 0, 1, 0, 0]


def test_the_codes_example_by_hand():
    """Returns .25, .5, 1 and 0, 0. V(s') - V(s) - .05 + r + G is
    -.1 - .05 + .25, .0 - .05 + .5, -.2 - .05 + 1 + 1, .02 - .05, -.32 - .05."""
    gain, learnt = credited(VSC(), [0.6, 0.5, 0.5, 0.3, 0.32], SUBGOAL)
    assert gain == [1, 1, 1, 0, 0]
    assert learnt == [1, 1, 1, 0, 0]


def test_the_digests_turns_by_hand():
    """v .6, nv .5, return .5: .35; an unfinished one of v .3, nv .32: -.03."""
    assert credited(VSC(), [0.6, 0.5], [0, 1])[0][0] == 1
    assert credited(VSC(), [0.3, 0.32], [0, 0])[0][0] == 0
    assert credited(VSC(), [0.3, 0.36], [0, 0])[0] == [1, 0]  # what goes better than foreseen, though not to the end


def test_what_goes_back_far_from_the_subgoal_is_left_out():
    gain, learnt = credited(VSC(), [0.9, 0.5, 0.9], [0, 0, 1])
    assert gain == [0, 1, 1]  # -.4 - .05 + .25; .4 - .05 + .5; -.9 - .05 + 2
    assert learnt == [1, 1, 1]


def test_the_margin_is_exclusive():
    assert credited(VSC(margin=0.25), [0.5, 0.75], [0, 0])[0] == [0, 0]
    assert credited(VSC(margin=0.125), [0.5, 0.75], [0, 0])[0] == [1, 0]


def test_the_return_less_the_value_by_hand():
    """.25 - .1, .5 - .46, 1 - .9, 0 - 0, 0 + .1, over .05."""
    gain, learnt = credited(VSC(use_next_value=False), [0.1, 0.46, 0.9, 0.0, -0.1], SUBGOAL)
    assert gain == [1, 0, 1, 0, 1]
    assert learnt == [0.25, 0.5, 1, 0, 0]
    assert credited(VSC(use_next_value=False, discount=0.9), [0.0, 0.0], [0, 1])[1] == pytest.approx([0.9, 1])


@pytest.mark.parametrize(
    ("told", "counted", "returns"),
    [
        ([1, 0, 1, 1, 0], False, [1, 0.5, 1, 1, 0]),
        ([1, None, 1, None, None], False, [1, 0.5, 1, 0, 0]),
        ([0, 1, 1, 2, 2], True, [0.5, 1, 0.5, 1, 0]),
        ([0, 1, None, 0, 1], True, [0.5, 1, 0, 0, 0]),  # what was reached already
        ([0, 0, 3, 3, 3], True, [0.25, 0.5, 1, 0, 0]),
    ],
)
def test_segments_by_hand(told, counted, returns):
    assert credited(VSC(use_next_value=False, cumulative=counted), [0] * 5, told)[1] == returns
    assert credited(VSC(use_next_value=False, cumulative=counted, info_key="x"), [0] * 5, told, by="x")[1] == returns
    assert credited(VSC(use_next_value=False, cumulative=counted), [0] * 5, told, by="x")[1] == [0] * 5


def test_a_paid_end_is_one():
    quiet = [None] * 3
    assert credited(VSC(use_next_value=False), [0] * 3, quiet, [0, 0, 0.5])[1] == [0.25, 0.5, 1]
    assert credited(VSC(use_next_value=False), [0] * 3, [1, None, None], [0, 0, 0.5])[1] == [1, 0.5, 1]
    assert credited(VSC(use_next_value=False), [0] * 3, quiet, [0.5, 0, 0])[1] == [0] * 3
    assert credited(VSC(use_next_value=False), [0] * 3, quiet, [0, 0, -1])[1] == [0] * 3
    assert credited(VSC(), [0.5, 1.0], quiet[:2], [0, 1])[0] == [1, 1]  # 0 - 1 - .05 + 1 + 1


def test_what_was_cut_off_goes_on_with_the_critics_value():
    cut = credited(VSC(), [0.2, 0.2], [0, 0], ending=Ending.TURNS, after=0.5)
    ended = credited(VSC(), [0.2, 0.2], [0, 0], after=0.5)
    assert (cut[0], ended[0]) == ([0, 1], [0, 0])
    assert cut[1] == ended[1] == [0, 0]


def test_all_tokens_of_a_turn_alike_and_the_critic_asked_at_the_first():
    one = trajectory([2, 0, 3], infos=[{}, {}, {"subgoal": 1.0}])
    values = stream([[[0.5, 9.0], [], [0.5, -9.0, 9.0]]])
    [[credit]] = VSC()([group(one)], [paid([0, 0, 0])], {"values": values, "next_values": values})
    assert credit.targets is not None
    assert [turn.tolist() for turn in credit.tokens] == [[1, 1], [], [1, 1, 1]]
    assert [turn[:1].tolist() for turn in credit.targets] == [[1], [], [1]]
    assert all(np.isnan(turn[1:]).all() for turn in credit.targets)
