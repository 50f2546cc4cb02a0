"""Curricula that draw by weights: what they remember of each task, and how often and in which order they draw it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from histories import TASKS, observe, played

from sojourn.curricula.learnability import Learnability
from sojourn.curricula.plr import PLR
from sojourn.curricula.task_history import RECENT, TaskHistory
from sojourn.curricula.weighted import WeightedCurriculum, best_of, weighted_sample
from sojourn.errors import ConfigError
from sojourn.tasks import Generated
from sojourn.types import Task


@dataclass(frozen=True)
class Fixed:
    """Weights that nothing changes."""

    given: tuple[float, ...]
    max_tasks: int = 100
    uniform: float = 0.0

    def weights(self, history: TaskHistory) -> np.ndarray:
        return np.array(self.given)


def test_consecutive_slots_share_the_tasks_as_the_weights_say():
    """Not at random: any number of slots has each task nearly as often as its weight."""
    weights = np.array([4, 0, 2, 1, 1, 0, 0, 0, 0, 8]) / 16
    curriculum = WeightedCurriculum(Fixed(tuple(weights)), TASKS, seed=3)
    for count in (16, 50, 400):
        drawn = Counter(curriculum.draw(slot).seed for slot in range(count))
        assert all(abs(drawn[n] - count * weight) <= 2.5 for n, weight in enumerate(weights))
    assert set(drawn) == {0, 2, 3, 4, 9}


def test_the_first_task_of_a_slot_is_distributed_as_the_weights():
    weights = np.array([4, 2, 1, 1, 0, 0, 0, 0, 0, 0]) / 8
    first = Counter(WeightedCurriculum(Fixed(tuple(weights)), TASKS, seed).draw(5).seed for seed in range(4000))
    assert [first[n] / 4000 for n in range(5)] == pytest.approx([0.5, 0.25, 0.125, 0.125, 0], abs=0.03)


def test_a_slot_plays_every_possible_task_once_before_one_again():
    curriculum = WeightedCurriculum(Fixed((1, 2, 3, 0, 50, 0, 0, 0, 0, 0)), TASKS, seed=1)
    drawn = [curriculum.draw(7, redraw).seed for redraw in range(8)]
    assert sorted(drawn[:4]) == [0, 1, 2, 4]
    assert drawn[4] == drawn[0]


def test_a_fraction_of_the_draws_takes_all_tasks_with_a_weight_alike():
    curriculum = WeightedCurriculum(Fixed((3, 0, 0, 1, 0, 0, 0, 0, 0, 0), uniform=0.5), TASKS, seed=1)
    assert curriculum.probabilities().tolist() == pytest.approx([0.625, 0, 0, 0.375, *[0] * 6])


def test_without_any_weight_all_tasks_are_drawn_alike():
    curriculum = WeightedCurriculum(Fixed((0,) * 10), TASKS, seed=1)
    assert curriculum.probabilities().tolist() == pytest.approx([0.1] * 10)


def test_slots_that_began_before_an_observation_are_redrawn_by_the_weights_of_then():
    """So that it makes no difference whether another step ends before a slot is drawn again."""
    early, late = (WeightedCurriculum(Learnability(), TASKS, seed=5) for _ in range(2))
    first = early.draw(0)
    assert late.draw(0) == first
    before = [early.draw(0, redraw).id for redraw in range(1, 6)]
    observe(late, played(first, [1, 1, 1, 1]))
    assert [late.draw(0, redraw).id for redraw in range(1, 6)] == before
    observe(early, played(first, [1, 1, 1, 1]))
    assert [early.draw(slot).id for slot in range(1, 9)] == [late.draw(slot).id for slot in range(1, 9)]


def test_a_history_counts_what_the_policy_played_of_the_pool():
    history = TaskHistory(TASKS, 10)
    three, four = history.drawn(3), history.drawn(4)
    known = played(three, [1, 0, 0, 1])
    history.observe([known[0]], [known[1]])
    again, demonstrated = played(three, [1, 1, 1, 1]), played(four, [1], origin="experts")
    unknown = played(Task("made", {}, 77, "test"), [1])
    history.observe([again[0], demonstrated[0], unknown[0]], [again[1], demonstrated[1], unknown[1]])
    assert history.clock == 2
    assert history.of.episodes.tolist() == [0, 0, 0, 8, 0, 0, 0, 0, 0, 0]
    assert history.success[3] == 0.75
    assert np.isnan(history.success[4])
    assert history.of.recent[3, -2:].tolist() == [0.5, 1.0]
    assert history.age.tolist() == [3, 3, 3, 1, 3, 3, 3, 3, 3, 3]
    assert history.labels[3] == ("made", "level-1")


TWICE = [*TASKS, *TASKS][:16]  # a split that lists six of its ten tasks twice, as a mixture does


def test_what_is_observed_of_a_task_counts_wherever_the_split_lists_it():
    history = TaskHistory(TWICE, 16)
    history.drawn(13)
    known = played(history.drawn(3), [1, 0, 0, 1])
    history.observe([known[0]], [known[1]])
    assert np.flatnonzero(history.seen).tolist() == [3, 13]
    assert history.success[[3, 13]].tolist() == [0.5, 0.5]
    assert history.age[[3, 13, 4]].tolist() == [1, 1, 2]
    assert np.flatnonzero(history.counted).tolist() == [13]  # where several tasks are added up, it is one
    assert [number for number, _ in history.outcomes([known[0]], [known[1]])] == [13]


def test_a_number_whose_task_was_played_before_takes_over_what_is_known_of_it_in_a_resumed_run_too():
    history = TaskHistory(TWICE, 16)
    known = played(history.drawn(13), [1, 1])
    history.observe([known[0]], [known[1]])
    history.drawn(3)  # the same task, after the step was observed
    resumed = TaskHistory(TWICE, 16)
    resumed.restore(history.state())
    for each in (history, resumed):
        each.observe([], [])
        assert each.of.episodes[[3, 13]].tolist() == [2, 2]
        assert np.flatnonzero(each.counted).tolist() == [13]


def test_every_task_is_played_at_last_where_the_split_lists_some_twice():
    """A number that shares its task with another would count as never played for ever, and take the draws."""
    curriculum = WeightedCurriculum(PLR(schedule="fixed", new=1.0), TWICE, seed=0)
    for slot in range(24):
        observe(curriculum, played(curriculum.draw(slot), [1, 0]))
    assert curriculum.metrics()["never_played"] == 0
    assert sum(curriculum.metrics()[f"observed_level-{n}"] for n in range(2)) == 24 * 2


def test_a_failed_group_says_nothing_of_its_task():
    history = TaskHistory(TASKS, 10)
    group, _ = played(history.drawn(0), [1])
    failed = replace(group, episodes=tuple(replace(e, error="it failed") for e in group.episodes))
    history.observe([failed], [[]])
    assert not history.seen.any()


def test_evaluations_count_by_tag_and_world_and_only_the_newest():
    history = TaskHistory(TASKS, 10)
    for wins in ([0, 0], [1, 0]):
        groups = [played(Task("made", {}, 100 + n, "test", (f"level-{n}",)), wins) for n in range(2)]
        history.observe_evaluation([g for g, _ in groups], [s for _, s in groups])
    assert history.tests == {"made": (4, 2), "level-0": (2, 1), "level-1": (2, 1)}


def test_older_groups_count_less_in_the_posterior():
    history = TaskHistory(TASKS, 10)
    task = history.drawn(0)
    for wins in ([1, 1], [0, 0], [1, 0]):
        group, scores = played(task, wins)
        history.observe([group], [scores])
    successes, failures = history.posterior(prior=1, decay=0.5)
    assert (successes[0], failures[0]) == (1 + 2 / 4 + 0 + 1, 1 + 0 + 2 / 2 + 1)
    assert (successes[1], failures[1]) == (1, 1)
    assert RECENT == 8


def test_learnability_is_greatest_where_half_of_the_episodes_succeed():
    curriculum = Learnability(uniform=0.0, decay=1.0).bind(TASKS, seed=0)
    for index, wins in {0: [1] * 8, 1: [0] * 8, 2: [1, 0] * 4, 3: [1] * 6 + [0] * 2}.items():
        observe(curriculum, played(curriculum.history.drawn(index), wins))
    weights = curriculum.config.weights(curriculum.history)
    assert weights[2] == max(weights[:4])
    assert weights[2] == pytest.approx(5 * 5 / (10 * 11))  # E[p (1 - p)] of Beta(5, 5)
    assert weights[0] == weights[1] == pytest.approx(9 * 1 / (10 * 11))
    assert weights[4] == pytest.approx(1 / 6)  # of a task never played: Beta(1, 1)


def test_a_checkpoint_of_another_number_of_tasks_is_refused():
    state = Learnability().bind(TASKS, seed=0).state()
    other = Learnability().bind(Generated(lambda index: Task("made", {}, index, "train"), 11), seed=0)
    with pytest.raises(ConfigError, match="knows 10 tasks, and the split has 11"):
        other.restore(state)


def test_a_weighted_sample_has_none_twice_and_none_without_weight():
    rng = np.random.default_rng(0)
    weights = np.array([1.0, 0, 3, 0, 6])
    samples = [weighted_sample(rng, weights, 2).tolist() for _ in range(4000)]
    assert all(len(set(one)) == 2 and not {1, 3} & set(one) for one in samples)
    first = Counter(one[0] for one in samples)
    assert [first[n] / 4000 for n in (0, 2, 4)] == pytest.approx([0.1, 0.3, 0.6], abs=0.03)
    assert len(weighted_sample(rng, weights, 9)) == 3


def test_metrics_tell_what_the_next_draw_is_like():
    curriculum = WeightedCurriculum(Fixed((3, 1, 0, 0, 0, 0, 0, 0, 0, 0)), TASKS, seed=0)
    observe(curriculum, played(curriculum.history.drawn(0), [1, 1, 1, 0]))
    metrics = curriculum.metrics()
    assert metrics["draw_entropy"] == pytest.approx(0.75 * np.log(4 / 3) + 0.25 * np.log(4))
    assert metrics["never_played"] == 0.9
    assert metrics["predicted_success"] == pytest.approx(0.75 * (1 + 3) / (2 + 4) + 0.25 * 0.5)


def test_metrics_tell_what_is_believed_of_each_tag():
    curriculum = WeightedCurriculum(Fixed((3, 1, 0, 0, 0, 0, 0, 0, 0, 0)), TASKS, seed=0)
    observe(curriculum, played(curriculum.history.drawn(0), [1, 1, 1, 0]), played(curriculum.history.drawn(2), [1]))
    metrics = curriculum.metrics()
    assert not any(name.endswith("made") for name in metrics)  # the world of all tasks
    assert [metrics[f"draw_share_level-{n}"] for n in range(2)] == [0.75, 0.25]
    assert [metrics[f"observed_level-{n}"] for n in range(2)] == [5, 0]
    expected = (4 / 6 + 2 / 3 + 3 * 0.5) / 5
    assert [metrics[f"predicted_success_level-{n}"] for n in range(2)] == pytest.approx([expected, 0.5])


def test_the_best_of_some_candidates_is_as_likely_as_counting_says():
    """Of two candidates among three, 9 pairs: the best is 5, 3 and 1 of them."""
    assert best_of(np.array([0.3, 0.9, 0.1]), 2).tolist() == pytest.approx([3 / 9, 5 / 9, 1 / 9])
    assert best_of(np.array([0.3, 0.9, 0.3, 0.1]), 2).tolist() == pytest.approx([4 / 16, 7 / 16, 4 / 16, 1 / 16])


def test_what_weights_draw_at_random_is_the_same_after_a_restart():
    @dataclass(frozen=True)
    class Random(Fixed):
        def weights(self, history: TaskHistory) -> np.ndarray:
            return history.rng().random(history.count)

    first, second = (WeightedCurriculum(Random(()), TASKS, seed) for seed in (1, 2))
    begun = first.probabilities()
    assert begun.tolist() != second.probabilities().tolist()
    observe(first, played(first.draw(0), [1]))
    resumed = WeightedCurriculum(Random(()), TASKS, 1)
    resumed.restore(first.state())
    assert first.probabilities().tolist() != begun.tolist()
    for curriculum in (first, resumed):
        observe(curriculum, played(curriculum.draw(1), [1]))
    assert resumed.probabilities().tolist() == first.probabilities().tolist()
