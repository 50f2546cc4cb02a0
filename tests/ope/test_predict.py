"""Off-policy evaluation against examples by hand, and against the truth of a world that can be enumerated."""

import math

import numpy as np
import pytest

from sojourn.intervals import Estimate
from sojourn.ope import predict as predicting
from sojourn.ope.fitted import fitted_values
from sojourn.ope.logged import LoggedEpisode
from sojourn.ope.predict import METHODS, Prediction, improvements, predict

IMPORTANCE = ("is", "wis", "pdis", "wpdis")
ROBUST = ("dr", "wdr")


def episode(task, ratios, rewards, states=None) -> LoggedEpisode:
    features = np.zeros((len(ratios), 1), dtype=np.float32) if states is None else states
    return LoggedEpisode(task, np.log(ratios), np.array(rewards, dtype=float), features)


def test_every_method_by_hand():
    """Ratios 2, 1/2 and 1/2, 1/2 and 3; rewards 0, 1 and 1, 0 and 0. Values .5, .25 and .5, 0 and .5. The third ended
    after a turn and keeps its weight."""
    made = [episode("a", [2, 0.5], [0, 1]), episode("b", [0.5, 0.5], [1, 0]), episode("c", [3], [0])]
    found = predict(made, [np.array([0.5, 0.25]), np.array([0.5, 0.0]), np.array([0.5])])
    means = {name: estimate.mean for name, estimate in found.estimates.items()}
    weights = np.array([1, 0.25, 3])
    assert means["recorded"] == pytest.approx(2 / 3)
    assert means["is"] == pytest.approx((1 * 1 + 0.25 * 1 + 3 * 0) / 3)
    assert means["wis"] == pytest.approx((1 * 1 + 0.25 * 1) / 4.25)
    assert means["pdis"] == pytest.approx((0.5 * 1 + 1 * 1) / 3)
    assert means["wpdis"] == pytest.approx(0.5 / 5.5 + 1 / 4.25)
    assert means["fitted"] == pytest.approx(0.5)
    errors = [2 * -0.5 + 1 * 0.75, 0.5 * 0.5, 3 * -0.5]
    states = [0.5 + 2 * 0.25, 0.5, 0.5]
    assert means["dr"] == pytest.approx((sum(errors) + sum(states)) / 3)
    first, second = (2 * -0.5 + 0.5 * 0.5 + 3 * -0.5) / 5.5, 1 * 0.75 / 4.25
    assert means["wdr"] == pytest.approx(first + second + 0.5 + 2 * 0.25 / 5.5)
    assert found.effective == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    assert found.mean_weight == pytest.approx(4.25 / 3)
    assert found.estimates.keys() == METHODS.keys()


def test_the_policy_that_was_recorded_does_what_was_recorded():
    rng = np.random.default_rng(0)
    made = [episode(f"{n // 2}", [1, 1, 1], [0, 0, float(rng.random() < 0.4)]) for n in range(60)]
    found = predict(made, [rng.normal(size=3) for _ in range(60)])
    recorded = found.estimates["recorded"]
    for name in (*IMPORTANCE, *ROBUST):  # whatever the values are
        assert found.estimates[name] == pytest.approx(recorded)
    assert recorded.low < recorded.mean < recorded.high
    assert found.effective == pytest.approx(60)


# A corridor of three doors, each in one of two rooms, which is drawn by chance. A policy chooses the right side of a
# door or the wrong one, which ends the play; who passes all three wins.
PLACES = [(turn, room) for turn in range(3) for room in range(2)]


def policy(right: float):
    """Chooses the right side so often, at every door of the first room, and less often in the second."""
    return {place: right if place[1] == 0 else right**2 for place in PLACES}


def truth(chances) -> float:
    """Wins from the start: over the rooms of the three turns, which are drawn anew each time."""
    by_turn = [np.mean([chances[turn, room] for room in range(2)]) for turn in range(3)]
    return float(np.prod(by_turn))


def features(turn, room) -> np.ndarray:
    return np.eye(6, dtype=np.float32)[turn * 2 + room]


def play(rng, behaviour, candidate, task) -> LoggedEpisode:
    logs, rewards, states = [], [], []
    for turn in range(3):
        room = int(rng.integers(2))
        right = rng.random() < behaviour[turn, room]
        chance = [policy[turn, room] if right else 1 - policy[turn, room] for policy in (behaviour, candidate)]
        logs.append(math.log(chance[1] / chance[0]))
        rewards.append(float(right and turn == 2))
        states.append(features(turn, room))
        if not right:
            break
    return LoggedEpisode(task, np.array(logs), np.array(rewards), np.array(states))


@pytest.fixture
def fewer_refits(monkeypatch):
    """Where the interval of fitted values is not looked at."""
    monkeypatch.setattr(predicting, "REFITS", 2)


@pytest.mark.parametrize("right", [0.5, 0.7, 0.9])
def test_every_method_finds_the_truth_of_another_policy(right, fewer_refits):
    rng, behaviour, candidate = np.random.default_rng(1), policy(0.75), policy(right)
    episodes = [play(rng, behaviour, candidate, f"{n}") for n in range(4000)]
    found = predict(episodes)
    true, recorded = truth(candidate), truth(behaviour)
    assert found.estimates["recorded"].mean == pytest.approx(recorded, abs=0.03)
    for name in (*IMPORTANCE, *ROBUST, "fitted"):
        estimate = found.estimates[name]
        assert estimate.mean == pytest.approx(true, abs=0.04), name
        if name != "fitted":  # which has a bias
            assert estimate.low - 0.01 <= true <= estimate.high + 0.01, name


def test_intervals_hold_the_truth_as_often_as_they_say(fewer_refits):
    """Of forty small records, the 95% intervals of the doubly robust estimate."""
    behaviour, candidate = policy(0.75), policy(0.85)
    held = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        estimate = predict([play(rng, behaviour, candidate, f"{n}") for n in range(300)]).estimates["dr"]
        held.append(estimate.low <= truth(candidate) <= estimate.high)
    assert 0.85 <= np.mean(held) <= 1.0


def test_doubly_robust_varies_less_than_importance_sampling(fewer_refits):
    behaviour, candidate = policy(0.75), policy(0.9)
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        estimates = predict([play(rng, behaviour, candidate, f"{n}") for n in range(300)]).estimates
        found.append((estimates["is"].mean, estimates["dr"].mean))
    errors = np.sqrt(np.mean((np.array(found) - truth(candidate)) ** 2, axis=0))
    assert errors[1] < 0.8 * errors[0]


def test_values_of_an_episode_are_fitted_on_others():
    """Every episode of a task wins, and none of the other: the values of each are those of the other."""
    states = np.ones((1, 4), dtype=np.float32) * np.arange(4)
    won = [episode("0", [1], [1], states) for _ in range(3)]
    lost = [episode("1", [1], [0], states) for _ in range(3)]
    found = fitted_values([*won, *lost])
    assert [float(v[0]) for v in found[:3]] == pytest.approx([0] * 3, abs=0.01)
    assert [float(v[0]) for v in found[3:]] == pytest.approx([1] * 3, abs=0.01)


def test_the_interval_of_fitted_values_knows_how_few_episodes_there_are():
    behaviour, candidate = policy(0.75), policy(0.85)
    widths = []
    for count in (60, 960):
        rng = np.random.default_rng(0)
        estimate = predict([play(rng, behaviour, candidate, f"{n}") for n in range(count)]).estimates["fitted"]
        widths.append(estimate.high - estimate.low)
        assert estimate.low < truth(candidate) < estimate.high
    assert 2 < widths[0] / widths[1] < 8  # about the root of 16


def test_a_gate_opens_for_what_is_predicted_to_be_better_and_is_known():
    """What was recorded won 50%. Neither an equal candidate passes, nor one that the records show little of, nor one
    that is better than these but not than the last that passed."""

    def candidate(mean: float, effective: float = 100.0, weight: float = 1.0) -> Prediction:
        estimates = {"recorded": Estimate(0.5, 0.4, 0.6, 100), "wdr": Estimate(mean, 0, 1, 100)}
        return Prediction(estimates, effective, weight, 100)

    told = [candidate(0.5), candidate(0.6), candidate(0.9, effective=29), candidate(0.9, weight=0.7), candidate(0.59)]
    assert improvements([*told, candidate(0.61)]) == [False, True, False, False, False, True]
    assert improvements([]) == []
