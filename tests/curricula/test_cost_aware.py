"""A curriculum that divides what tasks are worth by what their plays cost, on examples computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from histories import TASKS, observe, played

from sojourn.curricula.cost_aware import CostAware
from sojourn.curricula.learnability import Learnability
from sojourn.tasks import Generated
from sojourn.types import Task

EVEN = Learnability(uniform=0.0, decay=1.0)
SIZES = Generated(lambda n: Task("w", {"size": n}, n, "train"), 5)


def costing(curriculum, index: int, tokens: int, episodes: int = 2):
    """A group of a task whose episodes sampled so many tokens each, of which one succeeds."""
    group, scores = played(curriculum.history.drawn(index), [1] + [0] * (episodes - 1))
    made = []
    for episode in group.episodes:
        [trajectory] = episode.trajectories
        [turn] = trajectory.turns
        sample = replace(turn.sample, tokens=np.zeros(tokens, int), logprobs=np.full(tokens, -1.0, np.float32))
        turns = (replace(turn, sample=sample),)
        made.append(replace(episode, trajectories=(replace(trajectory, turns=turns),)))
    return replace(group, episodes=tuple(made)), scores


def test_a_task_that_costs_four_times_as_much_is_drawn_a_quarter_as_often():
    config = CostAware(base=EVEN, prior=1e-9)
    curriculum = config.bind(Generated(lambda n: Task("w", {}, n, "train"), 2), 0)
    observe(curriculum, costing(curriculum, 0, 10), costing(curriculum, 1, 40))
    assert config.cost(curriculum.history) == pytest.approx([10, 40])
    assert curriculum.probabilities() == pytest.approx([0.8, 0.2])


def test_the_power_says_how_much_the_cost_counts():
    for power, share in ((0.0, 0.5), (0.5, 2 / 3), (2.0, 16 / 17)):
        curriculum = CostAware(base=EVEN, prior=1e-9, power=power).bind(TASKS, 0)
        observe(curriculum, costing(curriculum, 0, 10), costing(curriculum, 1, 40))
        first, second = curriculum.config.weights(curriculum.history)[:2]
        assert first / (first + second) == pytest.approx(share)


def test_what_was_never_played_costs_what_its_features_say():
    """Tasks of sizes 0 to 4, standardised: -1.414, -0.707, 0, 0.707, 1.414. Those of sizes 0 and 2 cost e and e^3,
    whose logarithms are -1 and 1 from their mean. Ridge regression of [-1, 1] on the rows [1, -1.414] and [1, 0], each
    of 2 episodes: (X'WX + I) b = X'Wy, with X'WX + I = [[5, -2.828], [-2.828, 5]] and X'Wy = [0, 2.828], so that
    b = [8, 14.142] / 17."""
    config = CostAware(base=EVEN, prior=1.0)
    curriculum = config.bind(SIZES, 0)
    assert config.cost(curriculum.history).tolist() == [1] * 5
    cheap, dear = 3, 20  # close to e and e^3: their logarithms are 1.0986 and 2.9957
    observe(curriculum, costing(curriculum, 0, cheap), costing(curriculum, 2, dear))
    half, mean = np.log(dear / cheap) / 2, np.log(dear * cheap) / 2
    guess = np.exp(mean + half * (8 + 14.142136 * (np.arange(5) - 2) / np.sqrt(2)) / 17)
    own = np.array([cheap, 0, dear, 0, 0])
    played_twice = np.array([2, 0, 2, 0, 0])
    assert config.cost(curriculum.history) == pytest.approx((2 * own * (own > 0) + guess) / (played_twice + 1))


def test_what_plays_cost_is_in_the_state_and_a_checkpoint_of_before_has_none():
    curriculum = CostAware(base=EVEN).bind(TASKS, 0)
    observe(curriculum, costing(curriculum, 0, 10), costing(curriculum, 1, 40))
    state, resumed = curriculum.state(), CostAware(base=EVEN).bind(TASKS, 0)
    resumed.restore(state)
    assert np.array_equal(resumed.probabilities(), curriculum.probabilities())
    assert np.array_equal(resumed.config.weights(resumed.history), curriculum.config.weights(curriculum.history))
    older = {**state, "history": {name: value for name, value in state["history"].items() if name != "tokens"}}
    resumed.restore(older)
    assert np.isfinite(resumed.config.weights(resumed.history)).all()
