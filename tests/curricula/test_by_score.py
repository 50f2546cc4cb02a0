"""Curricula that weigh each task by what was observed of it, on examples computed by hand."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest
from histories import TASKS, after, weights

from sojourn.curricula.cost_aware import CostAware
from sojourn.curricula.failures_first import FailuresFirst
from sojourn.curricula.learning_progress import LearningProgress
from sojourn.curricula.mopps import MoPPS
from sojourn.curricula.mpts import MPTS
from sojourn.curricula.near import Near
from sojourn.curricula.plr import PLR, ranks
from sojourn.curricula.solvable import Solvable
from sojourn.tasks import Generated
from sojourn.types import Task

THREE = ({0: [1, 0, 0, 0]}, {1: [1, 1, 0, 0]}, {2: [1, 1, 1, 1]})  # L1 of 3/8, 1/2 and 0; 2, 1 and 0 steps old


def test_plr_mixes_ranks_of_scores_with_staleness():
    """Ranks 2, 1, 3, so h of 1/2, 1, 1/3, together 11/6; three tasks of ten were played."""
    found = weights(PLR(staleness=0.1), *THREE)
    expected = [0.9 * 3 / 11 + 0.1 * 2 / 3, 0.9 * 6 / 11 + 0.1 / 3, 0.9 * 2 / 11]
    assert found == pytest.approx([*(0.3 * e for e in expected), *[0.1] * 7])


def test_plr_in_proportion_to_the_score_at_a_temperature():
    """3/8 and 1/2, squared: 9 to 16."""
    found = weights(PLR(staleness=0.0, by="proportional", temperature=0.5, schedule="fixed", new=0.25), *THREE)
    assert found == pytest.approx([0.75 * 9 / 25, 0.75 * 16 / 25, 0, *[0.25 / 7] * 7])


def test_plr_by_the_regret_to_the_greatest_reward_so_far():
    steps = ({0: [1, 0]}, {0: [0, 0], 1: [1, 1], 2: [0, 0]})  # regrets of 1, 0 and 0
    found = weights(PLR(score="max_mc", by="proportional", staleness=0.0), *steps)
    assert found == pytest.approx([0.3, 0, 0, *[0.1] * 7])


def test_plr_draws_new_tasks_until_all_were_played():
    assert weights(PLR()) == pytest.approx([0.1] * 10)
    every = {index: [index % 2, 0] for index in range(10)}
    assert sum(weights(PLR(schedule="fixed", new=0.5), every)) == pytest.approx(1)


def test_equal_scores_share_their_mean_rank():
    assert ranks(np.array([0.5, 0.9, 0.5, 0.1])).tolist() == [2.5, 1, 2.5, 4]


def test_near_weighs_by_the_expected_squared_distance():
    found = weights(Near(target=0.75, width=0.5, decay=1.0), {0: [1, 1, 1, 1, 1, 0]})
    distance = 6 * 2 / (64 * 9) + 0  # Beta(6, 2): its mean is the target
    assert found[1] / found[0] == pytest.approx(exp((distance - 1 / 12 - 1 / 16) / 0.5))
    narrow = weights(Near(width=1e-3), {0: [1, 0] * 8})
    assert narrow == pytest.approx([1, *[0] * 9])  # however far all of them are, by that width


def test_failures_come_first_until_they_are_given_up():
    config = FailuresFirst(power=2.0, give_up=4, decay=1.0)
    found = weights(config, {0: [1, 1, 0], 1: [0, 0, 0], 2: [0, 0, 0, 0]})
    assert found[:4] == pytest.approx([(2 / 5) ** 2, (4 / 5) ** 2, 0, 0.25])
    assert weights(FailuresFirst(give_up=0, decay=1.0), {2: [0, 0, 0, 0]})[2] == pytest.approx(5 / 6)


def test_solvable_tries_every_task_and_keeps_those_within_its_bounds():
    config = Solvable(trials=2, high=0.75, uniform=0.1)
    some = {index: [index % 2, 0] for index in range(9)}
    assert weights(config, some) == [0] * 9 + [1]
    curriculum = after(config, some, {9: [1, 1]})  # the odd ones are solved half of the time, and 9 always
    drawn = curriculum.probabilities()
    assert drawn.tolist() == pytest.approx([0.9 / 4 + 0.01 if index in (1, 3, 5, 7) else 0.01 for index in range(10)])


def test_solvable_without_any_task_left_draws_all_alike():
    none = {index: [0, 0] for index in range(10)}
    assert after(Solvable(trials=2), none).probabilities().tolist() == pytest.approx([0.1] * 10)


def test_learning_progress_is_that_of_two_averages_in_either_direction():
    """Rates of 0, 1 give averages of 0.3 and 0.09; rates of 1, 0 give 0.7 and 0.91."""
    config = LearningProgress(rate=0.3, threshold=0.1, new=0.2)
    curriculum = after(config, {0: [0, 0], 1: [1, 1], 2: [1, 0]}, {0: [1, 1], 1: [0, 0], 2: [1, 0]})
    rising, falling = 0.27 / 0.34 - 0.081 / 0.172, 0.819 / 0.828 - 0.63 / 0.66
    assert config.progress(curriculum.history)[:3] == pytest.approx([rising, falling, 0])
    high, low = 1 / (1 + exp(-1)), 1 / (1 + exp(1))  # of two values, each is one standard deviation from their mean
    expected = [0.8 * high, 0.8 * low, 0, *[0.2 / 7] * 7]
    assert config.weights(curriculum.history).tolist() == pytest.approx(expected)


def test_without_any_progress_all_tasks_that_are_known_are_drawn():
    found = weights(LearningProgress(new=0.2), *[{0: [1, 0], 1: [1, 1]}] * 2)
    assert found == pytest.approx([0.4, 0.4, *[0.025] * 8])


def test_mopps_updates_its_posterior_as_the_authors_do():
    config, alpha, beta = MoPPS(decay=0.5), 1.0, 1.0
    groups = ([1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0])
    for wins in groups:
        alpha = alpha * 0.5 + 1.0 * (1 - 0.5) + sum(wins)
        beta = beta * 0.5 + 1.0 * (1 - 0.5) + len(wins) - sum(wins)
    history = after(config, *({0: wins} for wins in groups)).history
    assert (alpha, beta) == (1 + 3 + 0.5 + 0.5, 1 + 1 + 1.5 + 0.5)
    assert config.predicted(history)[0] == pytest.approx(alpha / (alpha + beta))


def test_mopps_plays_tasks_whose_draw_is_nearest_to_the_target():
    """Two hundred episodes leave no doubt of the order 4, 3, 2, 1, 0 of nearness to 0.9."""
    tasks = Generated(lambda index: Task("made", {}, index, "train"), 5)
    rates = {index: [1] * (40 * index + 20) + [0] * (180 - 40 * index) for index in range(5)}
    found = weights(MoPPS(target=0.9, candidates=2, decay=1.0), rates, tasks=tasks)
    assert found == pytest.approx([1 / 25, 3 / 25, 5 / 25, 7 / 25, 9 / 25])


def test_mopps_draws_anew_in_every_step():
    curriculum = after(MoPPS(), {0: [1, 0]})
    before = curriculum.probabilities()
    curriculum.observe([], [])
    assert curriculum.probabilities().tolist() != before.tolist()


NUMBERED = Generated(lambda index: Task("made", {"size": index // 3, "same": 1}, index, "train", (f"l{index % 2}",)), 8)
SEEN = ({0: [1, 1, 1, 0], 5: [0, 0, 0, 0]}, {0: [1, 1], 3: [0, 1]})


def test_mpts_is_the_gaussian_process_that_it_stands_for():
    """Its regression, with every kernel written out: K = shared^2 X X' + own^2 I, noise 1/4 per episode."""
    config = MPTS(shared=0.3, own=0.2, decay=0.5)
    history = after(config, *SEEN, tasks=NUMBERED).history
    features = history.features
    assert features.shape == (8, 4)  # 1, l0 and l1, and size; not the world and `same`, which are of all tasks
    kernel = 0.09 * features @ features.T + 0.04 * np.eye(8)
    seen, episodes = [0, 3, 5], np.array([2 + 4 / 2, 2, 4])
    rates = np.array([(2 + 3 / 2) / 4, 0.5, 0])
    inverse = np.linalg.inv(kernel[np.ix_(seen, seen)] + np.diag(0.25 / episodes))
    mean = 0.5 + kernel[:, seen] @ inverse @ (rates - 0.5)
    variance = np.diag(kernel - kernel[:, seen] @ inverse @ kernel[seen])
    belief = config.belief(history)
    assert belief.mean == pytest.approx(mean)
    assert belief.deviation == pytest.approx(np.sqrt(variance))


def test_mpts_learns_of_tasks_that_were_never_played_from_those_of_their_tag():
    wins = {index: [1, 1, 1, 1] if index % 2 else [0, 0, 0, 0] for index in range(6)}
    expected = MPTS().predicted(after(MPTS(), wins).history)
    assert expected[9] > 0.7
    assert expected[8] < 0.3


def test_mpts_aims_at_hard_tasks_or_at_a_target():
    wins = {index: [1] * index + [0] * (9 - index) for index in range(10)}
    hard = weights(MPTS(aim="hard", curiosity=0.0, own=1.0, candidates=2), wins, tasks=TASKS)
    assert np.argsort(hard).tolist() == list(range(9, -1, -1))
    target = weights(MPTS(target=2 / 3, curiosity=0.0, own=9.0, candidates=2), wins, tasks=TASKS)
    assert np.argmax(target) == 6


@pytest.mark.parametrize(
    "config", [PLR(), Near(), LearningProgress(), MoPPS(), MPTS(), FailuresFirst(), Solvable(), CostAware()]
)
def test_a_curriculum_without_plays_draws_all_tasks_alike(config):
    if isinstance(config, MoPPS):
        return  # it draws at random from what it believes
    assert after(config).probabilities().tolist() == pytest.approx([0.1] * 10)
