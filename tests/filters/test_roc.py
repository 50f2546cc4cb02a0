"""Which half of a group is trained, by hand."""

from dataclasses import replace

import pytest
from cases import group, paid, trajectory

from sojourn.filters.roc import ROC
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.types import Ending


def episode(won, errors, turns=4):
    infos = [{"malformed": float(n < errors)} for n in range(turns)]
    infos[-1] |= {"success": float(won)}
    return trajectory([1] * turns, infos=infos)


def test_of_what_succeeded_the_cleanest_and_of_what_failed_as_many():
    made = group(*(episode(True, n) for n in (2, 0, 3, 1)), *(episode(False, 3) for _ in range(4)))
    kept = ROC()(made, [])
    assert [n for n in kept if n < 4] == [1, 3]
    assert len(kept) == 4


@pytest.mark.parametrize(("won", "lost", "of_won", "of_lost"), [(1, 7, 1, 3), (7, 1, 3, 1), (4, 0, 2, 0), (1, 1, 1, 1)])
def test_both_kinds_stay_where_there_are_both(won, lost, of_won, of_lost):
    made = group(*(episode(True, 0) for _ in range(won)), *(episode(False, 0) for _ in range(lost)))
    kept = ROC()(made, [])
    assert (sum(n < won for n in kept), sum(n >= won for n in kept)) == (of_won, of_lost)


def test_it_does_not_matter_in_which_order_episodes_come():
    made = group(*(episode(n % 2, n % 3) for n in range(8)))
    ids = {made.episodes[n].id for n in ROC()(made, [])}
    turned = replace(made, episodes=made.episodes[::-1])
    assert {turned.episodes[n].id for n in ROC()(turned, [])} == ids


def test_failed_episodes_are_left_out_and_scores_stay_with_their_episodes():
    made = group(*(episode(True, n) for n in range(4)))
    broken = replace(made.episodes[0], error="the browser died")
    made = replace(made, episodes=(broken, *made.episodes[1:]))
    kept = ROC()(made, [])
    assert kept == [1, 2]
    left = ScoredGroup(made, paid([1] * 4, [2] * 4, [3] * 4)).select([1, 3])
    assert [e.id for e in left.group.episodes] == ["0-1", "0-3"]
    assert [score.total for score in left.scores] == [4, 12]
    assert not ScoredGroup(made, paid([1] * 4, [2] * 4, [3] * 4)).select([]).scores


def played(won, *errors, malformed=0, ending=Ending.DONE):
    """A turn for each of `errors`: of a tool that worked (0) or failed (1), or that called none (None)."""
    infos = [{} if error is None else {"error": float(error)} for error in errors]
    for n in range(malformed):
        infos[n]["malformed"] = 1.0
    infos[-1] |= {"success": float(won)}
    return replace(trajectory([1] * len(errors), infos=infos), ending=ending)


BY_PENALTY = (
    (played(True, 0, 0, None), 0.0),
    (played(True, 1, 0, 0, None), 1 / 3),  # of the turns that called a tool
    (played(True, None, None), 0.5),  # no tool was called
    (played(True, 1, 0, 0, None, malformed=1), 1 / 3 + 1 / 4),
    (played(True, 1, 1, 0, None), 2 / 3),
    (played(True, None, None, malformed=1), 1.0),
    (played(True, 0, 0, ending=Ending.TURNS), 1.0 + 1e-9),  # no answer
    (played(True, 1, 1, malformed=2), 2.0),
)


def test_tool_errors_and_format_add_up_by_hand():
    for made, penalty in BY_PENALTY:
        assert ROC()._penalty(group(made).episodes[0]) == pytest.approx(penalty, abs=1e-6)


@pytest.mark.parametrize("kept", range(1, len(BY_PENALTY)))
def test_of_what_succeeded_the_smallest_penalty_stays(kept):
    made = group(*(trajectory for trajectory, _ in reversed(BY_PENALTY)))
    found = ROC(fraction=kept / len(BY_PENALTY))(made, [])
    if kept != 6:  # the sixth and the seventh are equals
        assert sorted(len(BY_PENALTY) - 1 - n for n in found) == list(range(kept))


def test_the_number_of_tool_errors_can_have_another_name():
    infos = [{"failed_calls": 1.0}, {"failed_calls": 0.0, "success": 1.0}]
    assert ROC(info_key="failed_calls")._penalty(group(trajectory([1, 1], infos=infos)).episodes[0]) == 0.5


def test_a_seat_that_never_played_changes_no_penalty():
    silent = replace(trajectory([]), agent="other", turns=())
    for made, penalty in BY_PENALTY:
        episode = group(made).episodes[0]
        both = replace(episode, trajectories=(*episode.trajectories, silent))
        assert ROC()._penalty(both) == pytest.approx(penalty, abs=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_play_that_was_won_without_a_turn_has_no_errors():
    never = replace(trajectory([]), unacted_info={"success": 1.0})
    made = group(never, *(episode(True, 4) for _ in range(3)), *(episode(False, 0) for _ in range(4)))
    scores = paid([], *[[0] * 4] * 7)
    assert [n for n in ROC(fraction=0.25)(made, scores) if n < 4] == [0]
