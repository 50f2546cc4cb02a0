"""Curricula that share their draws between worlds, tags or levels, on examples computed by hand."""

from __future__ import annotations

from dataclasses import replace
from math import log1p, sqrt

import numpy as np
import pytest
from histories import TASKS, after, played, weights

from sojourn.curricula.balanced import Balanced
from sojourn.curricula.bandit import Bandit
from sojourn.curricula.cycle import Cycle
from sojourn.curricula.deficits import Deficits
from sojourn.curricula.failures_first import FailuresFirst
from sojourn.curricula.learnability import Learnability
from sojourn.curricula.levels import Levels
from sojourn.errors import ConfigError
from sojourn.tasks import Generated
from sojourn.types import Task

EVEN = Learnability(uniform=0.0, decay=1.0)
WORLDS = Generated(lambda n: Task("big" if n % 4 else "small", {"size": 8 + n // 4}, n, "train"), 12)


def levels(found: list[float], tasks=TASKS) -> list[float]:
    """The share of each level of `TASKS`: its even and its odd tasks."""
    return [sum(found[0::2]), sum(found[1::2])]


def test_balanced_gives_each_world_its_share_and_its_tasks_what_the_base_says():
    found = weights(Balanced(by="world", base=FailuresFirst(decay=1.0)), {0: [1, 1], 1: [0, 0]}, tasks=WORLDS)
    assert [sum(found[0::4]), sum(found)] == pytest.approx([0.5, 1])  # 3 tasks of 12 are of the small world
    assert found[0:9:4] == pytest.approx([0.5 / 5, 0.5 * 2 / 5, 0.5 * 2 / 5])  # 1/4 to 1/2 and 1/2
    assert found[1] / found[2] == pytest.approx(3 / 2)  # 3/4 to 1/2


def test_balanced_by_a_key_of_the_data():
    config = Balanced(by="size", base=EVEN)
    found = weights(config, tasks=Generated(lambda n: Task("w", {"size": min(n, 1)}, n, "train"), 5))
    assert found == pytest.approx([0.5, 0.125, 0.125, 0.125, 0.125])


def test_a_large_pool_is_only_looked_through_where_the_curriculum_has_made_its_tasks():
    made: list[int] = []

    def make(n: int) -> Task:
        made.append(n)
        return Task("w", {}, n, "train", (f"t{n % 2}",))

    for count, config, told in ((600, EVEN, False), (400, EVEN, True), (600, Balanced(by="tag", base=EVEN), True)):
        made.clear()
        metrics = config.bind(Generated(make, count), 0).metrics()
        assert ("draw_share_t0" in metrics) == told
        assert len(made) == (count if told else 0)


def test_a_key_that_no_task_has_is_refused():
    with pytest.raises(ConfigError, match=r"by = 'sise': no task of the pool has 'sise' in its data; .*such as size"):
        Balanced(by="sise").bind(WORLDS, 0)


def test_a_base_that_does_not_weigh_is_refused():
    with pytest.raises(ValueError, match="base = Cycle draws tasks in an order of its own"):
        Balanced(base=Cycle())  # type: ignore[arg-type]


def test_the_bandit_plays_by_upper_confidence_bounds():
    """Level 0 has one group of half successes two steps ago, level 1 two groups without a signal one step ago."""
    config = Bandit(gain="variance", explore=0.5, decay=0.5, pulls=16, base=EVEN)
    found = weights(config, {0: [1, 0]}, {1: [1, 1], 3: [0, 0]})
    groups, potential, pulled = np.array([0.5, 2.0]), np.array([0.25, 0.0]), np.zeros(2)
    for _ in range(16):
        known = groups + pulled
        pulled[np.argmax(potential + 0.5 * np.sqrt(log1p(known.sum()) / known))] += 1
    assert pulled.tolist() == [14, 2]  # 13 and 3 if the groups were one step older
    assert levels(found) == pytest.approx([14 / 16, 2 / 16])


def test_the_bandit_plays_an_arm_that_was_never_played_first():
    assert levels(weights(Bandit(pulls=1, base=EVEN), {0: [1, 0]})) == pytest.approx([0, 1])


def test_the_variation_of_hard_tasks_is_greater_than_that_of_easy_ones():
    config = Bandit(explore=0.0, pulls=1, base=EVEN)
    assert levels(weights(config, {0: [1, 1, 1, 0], 1: [1, 0, 0, 0]})) == pytest.approx([0, 1])
    gains = config._gains(after(config, {0: [1, 1, 1, 0], 1: [1, 0, 0, 0], 2: [0, 0]}).history)
    assert gains[:3] == pytest.approx([sqrt(3 / 16) / 0.75, sqrt(3 / 16) / 0.25, 0])


def test_a_level_opens_when_the_one_below_is_solved_and_stays_open():
    config = Levels(goal=0.75, episodes=4, window=2, newest=0.8, base=EVEN)
    assert levels(weights(config)) == pytest.approx([0.8, 0])
    assert levels(weights(config, {0: [1, 1, 1]})) == pytest.approx([0.8, 0])  # too few episodes
    assert levels(weights(config, {0: [1, 1, 0, 0]})) == pytest.approx([0.8, 0])  # too few successes
    solved = {0: [1, 1], 2: [1, 0]}
    assert levels(weights(config, solved)) == pytest.approx([0.2, 0.8])
    assert levels(weights(Levels(newest=0.0, base=EVEN))) == pytest.approx([1, 0])  # there is no level below
    assert levels(weights(config, solved, {}, {})) == pytest.approx([0.8, 0])  # too long ago, and level 1 not played
    assert levels(weights(config, solved, {1: [0, 0]}, {0: [0, 0]}, {0: [0, 0]})) == pytest.approx([0.2, 0.8])


def test_a_closed_level_is_never_drawn():
    curriculum = after(Levels(base=Learnability(uniform=0.5)))
    assert {curriculum.draw(slot, redraw).tags for slot in range(40) for redraw in range(3)} == {("level-0",)}


def test_levels_are_in_the_order_of_their_numbers_or_in_the_given_one():
    tasks = Generated(lambda n: Task("w", {"size": (10, 9, 2)[n % 3]}, n, "train"), 6)
    assert np.flatnonzero(weights(Levels(by="size", base=EVEN), tasks=tasks)).tolist() == [2, 5]
    found = weights(Levels(by="size", order=("9", "10"), base=EVEN), {1: [1] * 64}, tasks=tasks)
    assert [found[n] + found[n + 3] for n in range(3)] == pytest.approx([0.7, 0.3, 0])
    with pytest.raises(ConfigError, match="order names '7', but the values of 'size' in the first 6 tasks are 2, 9, 1"):
        Levels(by="size", order=("7",)).bind(tasks, 0)


def test_deficits_of_the_newest_evaluation_take_their_share():
    config = Deficits(power=2.0, floor=0.0, base=EVEN)
    curriculum = after(config)
    assert levels(config.weights(curriculum.history).tolist()) == pytest.approx([0.5, 0.5])
    test = played(Task("made", {}, 100, "test", ("level-1",)), [1, 1, 1, 0])
    curriculum.observe_evaluation([test[0]], [test[1]])
    shares = np.array([0.5**2, 0.25**2])  # level 0 was not evaluated
    assert levels(config.weights(curriculum.history).tolist()) == pytest.approx((shares / shares.sum()).tolist())


def test_tasks_without_tags_have_the_deficit_that_evaluations_show():
    tasks = Generated(lambda n: Task("w", {}, n, "train", ("hard",) if n % 2 else ()), 4)
    config = Deficits(floor=0.1, base=EVEN)
    curriculum = after(config, tasks=tasks)
    tests = [played(replace(tasks[n], seed=100 + n, split="test"), [1 - n, 1 - n]) for n in range(2)]
    curriculum.observe_evaluation([group for group, _ in tests], [scores for _, scores in tests])
    found = config.weights(curriculum.history)
    assert found[::2].sum() == pytest.approx(0.1 / (0.1 + 1.1))  # all of them were solved, none of the tag's
