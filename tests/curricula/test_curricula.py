"""Curricula draw by slot alone, so a resumed run meets the same tasks; schedules at their corners."""

import pytest

from sojourn.curricula.cycle import Cycle
from sojourn.curricula.shuffle import Shuffle
from sojourn.schedules import Constant, Cosine, Linear
from sojourn.tasks import Generated
from sojourn.types import Task

TASKS = Generated(lambda index: Task("made", {}, index, "train"), 10)


def test_generated_tasks_are_a_sequence():
    assert [t.seed for t in TASKS] == list(range(10))
    assert TASKS[-1].seed == 9
    assert [t.seed for t in TASKS[2:5]] == [2, 3, 4]
    with pytest.raises(IndexError):
        TASKS[10]


def test_cycle_goes_round_and_redraws_another_task():
    curriculum = Cycle().bind(TASKS, seed=0)
    assert [curriculum.draw(slot).seed for slot in (0, 9, 10, 13)] == [0, 9, 0, 3]
    assert curriculum.draw(3, redraw=1) != curriculum.draw(3)


def test_shuffle_draws_every_task_once_per_pass_in_an_order_of_the_seed():
    curriculum = Shuffle().bind(TASKS, seed=1)
    first, second = ([curriculum.draw(s).seed for s in range(start, start + 10)] for start in (0, 10))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert first == [Shuffle().bind(TASKS, seed=1).draw(s).seed for s in range(10)]
    assert first != [Shuffle().bind(TASKS, seed=2).draw(s).seed for s in range(10)]
    assert {Shuffle(max_tasks=3).bind(TASKS, seed=1).draw(s).seed for s in range(9)} == {0, 1, 2}


def test_blocks_of_tasks_are_shuffled_as_wholes():
    """Of 10 tasks in blocks of 3 the last block has 1."""
    curriculum = Shuffle(block=3).bind(TASKS, seed=2)
    order = [curriculum.draw(slot).seed for slot in range(10)]
    starts = [n for n, seed in enumerate(order) if seed % 3 == 0]
    assert sorted(order) == list(range(10))
    assert order != sorted(order)
    assert len(starts) == 4
    for at in starts:
        block = range(order[at], min(order[at] + 3, 10))
        assert order[at : at + len(block)] == list(block)
    assert order != [curriculum.draw(slot).seed for slot in range(10, 20)]


@pytest.mark.parametrize("curriculum", [Cycle(), Shuffle(), Shuffle(block=3)])
@pytest.mark.parametrize(
    ("count", "width", "redraws"), [(16, 4, 3), (17, 2, 7), (100, 3, 29), (101, 3, 29), (256, 8, 29)]
)
def test_no_slot_or_redraw_of_a_step_plays_the_task_of_another(curriculum, count, width, redraws):
    """Steps that span two passes of a shuffle are left out: there an order begins that knows nothing of the last."""
    bound = curriculum.bind(Generated(lambda index: Task("made", {}, index, "train"), count), seed=3)
    for first in range(0, count - width + 1, width):
        slots = range(first, first + width)
        drawn = [bound.draw(slot, redraw).seed for slot in slots for redraw in range(redraws + 1)]
        assert len(set(drawn)) == width * (redraws + 1)


@pytest.mark.parametrize("curriculum", [Cycle(), Shuffle(), Shuffle(block=3)])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 31, 33, 100])
def test_a_slot_plays_every_task_once_before_it_plays_one_again(curriculum, count):
    bound = curriculum.bind(Generated(lambda index: Task("made", {}, index, "train"), count), seed=3)
    drawn = [bound.draw(5, redraw).seed for redraw in range(2 * count)]
    assert sorted(drawn[:count]) == list(range(count))
    assert drawn[count:] == drawn[:count]


def test_schedules():
    assert [Constant(warmup=3)(step, 10) for step in (0, 1, 3, 9)] == [0.25, 0.5, 1, 1]
    assert [Linear(final=0.5)(step, 10) for step in (0, 5, 10)] == pytest.approx([1, 0.75, 0.5])
    assert [Cosine(final=0.2)(step, 10) for step in (0, 5, 10)] == pytest.approx([1, 0.6, 0.2])
