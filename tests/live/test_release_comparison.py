"""How often a release that people like less is found, by simulation, with the rule of today and the one before it."""

import statistics
from dataclasses import replace

import numpy as np
import pytest

from sojourn.live.gate import Gate
from sojourn.serving.comparison import Scores, Verdict, compare

GATE = Gate()  # a tenth of the sessions are the predecessor's, 50 sessions are watched, and the tolerance is 0.1
TRIALS, POLLED = 100, 10  # sessions between two looks


def ended_at_its_own_sessions(gate, count, scores):
    """Decides as Sojourn did: the watch ended with `count` sessions of the new release, however few the other had."""
    new, other = scores.new[:count], scores.other[:count]
    if len(new) > 1 and len(other) > 1:
        drop = statistics.fmean(other) - statistics.fmean(new)
        error = sum(statistics.variance(one) / len(one) for one in (new, other)) ** 0.5
        enough = (len(new) >= count and 2 * len(other) >= count) or drop > max(2 * error, 2 * gate.tolerance)
        if enough and drop > gate.tolerance:
            return Verdict.WORSE
    return Verdict.NOT_WORSE if len(new) >= count else Verdict.WAIT


def today(gate, count, scores):
    return compare(gate, count, scores).verdict


def watched(rule, drop, seed, gate=GATE):
    """Returns what becomes of a release, and how many sessions it answered until then. Of ten people, 8.5 are content
    with its predecessor, who say 1; the others say -1."""
    draws, new, other = np.random.default_rng(seed), [], []
    for session in range(1, 20_000):
        is_other = draws.random() < gate.canary_share
        content = draws.random() < 0.85 - (0 if is_other else drop / 2)
        (other if is_other else new).append(1.0 if content else -1.0)
        if session % POLLED == 0:
            verdict = rule(gate, gate.watch_sessions, Scores(new, other))
            if verdict is not Verdict.WAIT:
                return verdict, len(new)
    raise AssertionError("it is watched for ever")


def kept(rule, drop):
    """Returns the fraction of releases that serve on."""
    return np.mean([watched(rule, drop, seed)[0] is not Verdict.WORSE for seed in range(TRIALS)])


def test_a_moderate_drop_passed_unseen_in_a_third_of_trials_and_does_in_a_tenth_now():
    assert 0.25 < kept(ended_at_its_own_sessions, 0.25) < 0.45
    assert kept(today, 0.25) < 0.15


def test_a_release_that_is_as_good_was_rolled_back_in_most_trials_and_is_kept_now():
    assert kept(ended_at_its_own_sessions, 0.0) < 0.5
    assert kept(today, 0.0) > 0.75


def test_a_clear_drop_is_acted_on_long_before_both_have_enough_sessions():
    found = [watched(today, 1.2, seed) for seed in range(TRIALS)]
    assert {verdict for verdict, _ in found} == {Verdict.WORSE}
    assert np.median([sessions for _, sessions in found]) < GATE.watch_sessions


def test_a_watch_ends_at_its_limit_where_the_predecessor_has_few_sessions():
    gate = replace(GATE, canary_share=0.01, limit_sessions=300)
    verdict, sessions = watched(today, 0.0, 1, gate)
    assert (verdict, 300 <= sessions < 300 + POLLED) == (Verdict.UNKNOWN, True)
    assert compare(gate, 50, Scores([1.0, -1.0] * 150, [1.0, -1.0])).reason.startswith("too few sessions to tell: ")


@pytest.mark.parametrize(("others", "expected"), [(24, Verdict.UNKNOWN), (25, Verdict.WORSE)])
def test_where_the_predecessor_answers_nobody_half_as_many_of_its_last_sessions_are_enough(others, expected):
    alone = replace(GATE, canary_share=0.0)
    scores = Scores([1.0, -1.0] * 25, ([1.0, -0.6] * 25)[:others], earlier=True)
    assert compare(alone, 50, scores).verdict is expected
    assert compare(alone, 51, scores).verdict is Verdict.WAIT


def test_sessions_of_before_are_no_ground_to_keep_a_release_while_the_predecessor_still_answers():
    scores = Scores([0.5, 0.6] * 30, [0.5, 0.6] * 25, earlier=True)
    assert compare(GATE, 50, scores).verdict is Verdict.WAIT
    assert compare(GATE, 50, replace(scores, earlier=False)).verdict is Verdict.NOT_WORSE


def test_a_limit_below_what_is_waited_for_is_refused():
    with pytest.raises(ValueError, match="limit_sessions = 40: expected at least 50"):
        Gate(limit_sessions=40)
