"""Masks: advantages are 0 for what is masked, and unchanged for everything else."""

from __future__ import annotations

import numpy as np
import pytest
from cases import by_token, by_turn, group, of_episodes, paid, stream, trajectory

from sojourn.config.registry import build
from sojourn.credit.constant import Constant
from sojourn.credit.masked import Masked
from sojourn.credit.reinforce import Reinforce
from sojourn.errors import ConfigError
from sojourn.types import Score

WRONG = {"error": 1.0}
MALFORMED = {"malformed": 1.0}
PLAY = trajectory([1, 2, 1], infos=[{}, WRONG, MALFORMED])


def masked(groups, scores=None, streams=None, **options):
    scores = scores or [paid(*([0.0] * len(t.turns) for t in g.trajectories)) for g in groups]
    return Masked(**{"exclude": (), **options})(groups, scores, streams or {})


def test_turns_that_were_wrong_are_not_learnt():
    groups = [group(PLAY)]
    assert by_turn(masked(groups)[0]) == [[1, 1, 1]]
    assert by_turn(Masked()(groups, [paid([0, 0, 0])], {})[0]) == [[1, 1, 0]]  # malformed ones, by default
    assert by_turn(masked(groups, exclude=("error", "malformed"))[0]) == [[1, 0, 0]]


def test_the_first_or_last_turn_alone():
    assert by_turn(masked([group(PLAY)], turns="first")[0]) == [[1, 0, 0]]
    assert by_turn(masked([group(PLAY)], turns="last")[0]) == [[0, 0, 1]]
    assert by_turn(masked([group(PLAY)], turns="last", exclude=("malformed",))[0]) == [[0, 0, 0]]


def test_seats():
    episode = (trajectory([1], agent="buyer"), trajectory([1], agent="seller"))
    assert by_turn(masked([of_episodes([episode])], seats=("seller",))[0]) == [[0], [1]]
    with pytest.raises(ConfigError, match=r"seats = \['sellr'\]: no trajectory .* they are of buyer, seller: name one"):
        masked([of_episodes([episode])], seats=("sellr",))


def test_tokens_by_a_stream():
    groups = [group(trajectory([2, 1]))]
    streams = {"entropy": stream([[[0.5, 1.5], [1.0]]])}
    assert by_token(masked(groups, streams=streams, stream="entropy", stream_above=1.0)[0]) == [[0, 1, 0]]
    assert Masked(stream="entropy").needs == {"entropy"}
    assert Masked().needs == frozenset()


def test_turns_by_a_stream():
    """Perplexities of 1.05, 1.5 and 3 in the mean, of which the second is between those of 0.95 and 0.5."""
    groups = [group(trajectory([2, 1, 2]))]
    streams = {"policy_logprobs": stream([[[-0.05, -0.05], [-0.405], [-0.1, -2.1]]])}
    within = {"stream": "policy_logprobs", "stream_above": -0.693, "stream_below": -0.0513}
    assert by_token(masked(groups, streams=streams, **within, stream_by="turn")[0]) == [[0, 0, 1, 0, 0]]
    assert by_token(masked(groups, streams=streams, **within)[0]) == [[0, 0, 1, 1, 0]]


def test_trajectories_by_a_judge_who_may_be_silent():
    groups = [group(*(trajectory([1]) for _ in range(3)))]
    scores = [[Score(np.ones(1, dtype=np.float32), parts) for parts in ({"judge": 0.4}, {}, {"judge": 0.6})]]
    assert by_turn(masked(groups, scores, part="judge", part_above=0.5)[0]) == [[0], [0], [1]]
    with pytest.raises(ConfigError, match=r"part = 'jugde': no score of the step has it; they have judge: name one"):
        masked(groups, scores, part="jugde")
    assert masked([], [], part="judge") == []


def test_what_is_kept_has_the_advantages_of_the_base():
    groups, scores = [group(PLAY, trajectory([1]))], [paid([0, 0, 2], [1])]
    base = Reinforce(baseline="none")
    assert by_turn(base(groups, scores, {})[0]) == [[2, 2, 2], [1]]
    assert by_turn(Masked(base=base)(groups, scores, {})[0]) == [[2, 2, 0], [1]]


def test_a_negative_weight_of_an_imitated_token_is_refused():
    """-log p times a negative number has no lower bound."""
    with pytest.raises(ConfigError, match=r"value = -1.*(≥|at least|from) 0"):
        build("estimator", {"name": "constant", "value": -1.0}, "estimator")
    assert by_turn(masked([group(PLAY)], base=Constant(value=0.5))[0]) == [[0.5, 0.5, 0.5]]


@pytest.mark.filterwarnings("error")
def test_a_turn_without_tokens_has_no_mean():
    made = [group(trajectory([1, 0, 1]))]
    known = {"entropy": stream([[[0.2], [], [0.0]]])}
    [credit] = Masked(stream="entropy", stream_by="turn")(made, [paid([0, 0, 0])], known)
    assert by_token(credit) == [[1, 0]]
