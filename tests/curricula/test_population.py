"""A curriculum whose population of tasks grows by edits, on examples computed by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from histories import observe, played

from sojourn.abilities import Bounds, MakesTasks
from sojourn.curricula.accel import Accel
from sojourn.curricula.cycle import Cycle
from sojourn.curricula.learnability import Learnability
from sojourn.curricula.proposers.edits import Edits
from sojourn.curricula.task_history import TaskHistory
from sojourn.envs.mixed import Mixed
from sojourn.errors import ConfigError
from sojourn.types import Task
from sojourn_worlds.blackjack import Blackjack

EVEN = Learnability(uniform=0.0, decay=1.0)
TASKS = [Task("counted", {"size": size}, size, "train") for size in range(4)]


@dataclass
class Counted:
    """A world of sizes up to 9; those in `impossible` cannot be made."""

    impossible: Sequence[int] = ()
    tests: Sequence[Task] = ()

    def tasks(self, split: str) -> Sequence[Task]:
        return TASKS if split == "train" else self.tests

    def make(self, task: Task) -> Any:
        raise NotImplementedError

    def bounds(self, like: Task) -> Mapping[str, Bounds]:
        return {"size": Bounds(0, 9)}

    def make_task(self, like: Task, data: Mapping[str, Any], seed: int) -> Task | None:
        return None if data["size"] in self.impossible else Task(like.env, dict(data), seed, "train")


@dataclass
class Listed:
    """Proposes sizes one after another, all with seed 0, and notes from which tasks."""

    sizes: list[int]
    parents: list[int] = field(default_factory=list)

    def check(self, bounds: Mapping[str, Bounds]) -> None:
        assert list(bounds) == ["size"]

    def propose(self, history: TaskHistory, parent: int, world: MakesTasks, rng: np.random.Generator) -> Task | None:
        self.parents.append(history.pool[parent].data["size"])
        return world.make_task(history.pool[parent], {"size": self.sizes.pop(0)}, 0)


def population(world: Any = None, sizes: Sequence[int] = (), **fields: Any) -> Any:
    config = Accel(base=EVEN, proposer=Listed(list(sizes)), made=1.0, **{"capacity": 4, "start": 4} | fields)
    return config.bind_world(world or Counted(), TASKS, 0)


def sizes(curriculum: Any) -> list[int]:
    return [member.task.data["size"] for member in curriculum.members]


def play(curriculum: Any, outcomes: Mapping[int, list[int]]) -> None:
    """Shows the outcomes of the tasks of these sizes, as of one step."""
    tasks = {member.task.data["size"]: member.task for member in curriculum.members}
    observe(curriculum, *(played(tasks[size], wins) for size, wins in outcomes.items()))


def test_a_task_that_taught_least_gives_way_to_an_edit_of_one_that_taught_most():
    """p (1 - p) of Beta(1 + wins, 1 + losses): 1/5 of size 0, 3/20 of sizes 1 and 2, 5/42 of size 3."""
    curriculum = population(sizes=[7])
    assert sorted(sizes(curriculum)) == [0, 1, 2, 3]
    play(curriculum, {0: [1, 0], 1: [1, 1]})  # two are left that were never played: none is added
    assert sorted(sizes(curriculum)) == [0, 1, 2, 3]
    play(curriculum, {2: [0, 0], 3: [1, 1, 1, 1]})  # of a step of two groups, half are to be new
    assert sorted(sizes(curriculum)) == [0, 1, 2, 7]
    assert [curriculum.made, curriculum.refused] == [1, 0]
    assert curriculum.members[-1].task == Task("counted", {"size": 7}, 0, "train", ("made",))
    assert curriculum.members[-1].edits == 1


def test_parents_are_drawn_by_what_their_tasks_are_worth():
    curriculum = population(sizes=[9] * 400, capacity=300)
    play(curriculum, {size: [1, 0] * (size == 2) + [1] * 98 for size in range(4)})
    propose = curriculum.config.proposer
    rng, chances = np.random.default_rng(0), np.zeros(4)
    worth = curriculum.config.worth(curriculum.history)[:4]
    chances[:] = worth / worth.sum()
    for _ in range(200):
        curriculum._proposed(rng, curriculum.maker, chances, set())
    counts = np.bincount(propose.parents[-200:], minlength=4) / 200
    by_size = np.array([chances[sizes(curriculum)[:4].index(size)] for size in range(4)])
    assert by_size[2] > 1.9 * by_size[0]
    assert counts == pytest.approx(by_size, abs=0.08)


def test_what_was_never_played_takes_its_fraction_of_the_draws():
    curriculum = population(sizes=[7], new=0.25)
    assert curriculum._eras[-1].draws.weights.tolist() == [0.25] * 4
    play(curriculum, {0: [1, 0]})
    weights = dict(zip(sizes(curriculum), curriculum._eras[-1].draws.weights, strict=True))
    assert weights == pytest.approx({0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25})  # three of four were not played
    play(curriculum, {1: [1, 1], 2: [0, 0], 3: [1, 1, 1, 1]})
    weights = dict(zip(sizes(curriculum), curriculum._eras[-1].draws.weights, strict=True))
    assert weights[7] == pytest.approx(0.25)  # a quarter of three groups is one, which took the place of size 3
    assert weights[0] == pytest.approx(0.75 * (1 / 5) / (1 / 5 + 3 / 20 + 3 / 20))


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (Counted(impossible=[5]), "the world says that nobody can solve it"),
        (Counted(tests=[Task("counted", {"size": 5}, 0, "test")]), "it is of the test split"),
    ],
)
def test_a_refused_proposal_is_counted_and_another_takes_its_place(world: Counted, why: str):
    curriculum = population(world, sizes=[5, 6])
    play(curriculum, {size: [1, 0] for size in range(2)})
    play(curriculum, {size: [1, 0] for size in range(2, 4)})
    assert 6 in sizes(curriculum), why
    assert 5 not in sizes(curriculum), why
    assert [curriculum.made, curriculum.refused] == [1, 1]
    assert curriculum.metrics()["tasks_refused"] == 1


def test_a_task_that_is_in_the_population_is_not_made_again():
    curriculum = population(sizes=[6, 6, 8], capacity=6)
    play(curriculum, {size: [1, 0] for size in range(4)})
    assert sizes(curriculum)[-2:] == [6, 8]
    assert [curriculum.made, curriculum.refused] == [2, 1]


def test_a_made_task_that_is_always_solved_or_never_is_not_accepted():
    curriculum = population(sizes=[6, 7, 8, 9, 5], capacity=9, accept=(0.2, 0.8))
    play(curriculum, {0: [1, 1], 1: [0, 0], 2: [1, 1], 3: [0, 0]})
    assert sorted(sizes(curriculum)) == [0, 1, 2, 3, 6, 7]  # those of the split stay
    play(curriculum, {6: [1, 1, 1, 1, 1]})
    assert sorted(sizes(curriculum)) == [0, 1, 2, 3, 7]
    assert curriculum.metrics()["tasks_dropped"] == 1
    play(curriculum, {7: [1, 1, 1, 0]})
    assert sorted(sizes(curriculum)) == [0, 1, 2, 3, 7]
    play(curriculum, {7: [0] * 16, 3: [1, 0], 2: [1, 0], 1: [1, 0]})  # only its first groups count
    assert sorted(sizes(curriculum)) == [0, 1, 2, 3, 7, 8, 9]
    play(curriculum, {8: [0, 0, 0, 0], 9: [0]})
    assert sorted(sizes(curriculum)) == [0, 1, 2, 3, 5, 7]


def test_a_proposer_that_is_always_refused_leaves_the_place_to_the_split():
    curriculum = population(Counted(impossible=range(10)), sizes=[5] * 100, start=2)
    known = sizes(curriculum)
    play(curriculum, {size: [1, 0] for size in known})
    assert len(sizes(curriculum)) == 3
    assert set(sizes(curriculum)) <= {0, 1, 2, 3}
    assert [curriculum.made, curriculum.refused] == [0, 8]


def test_slots_that_began_before_are_redrawn_from_the_population_of_then():
    early, late = (population(sizes=[7]) for _ in range(2))
    for curriculum in (early, late):
        play(curriculum, {0: [1, 0], 1: [1, 1]})
        curriculum.draw(5)
    before = [early.draw(5, redraw).id for redraw in range(4)]
    play(late, {2: [0, 0], 3: [1, 1, 1, 1]})
    assert [late.draw(5, redraw).id for redraw in range(4)] == before
    assert {late.draw(6, redraw).data["size"] for redraw in range(4)} == {0, 1, 2, 7}


def test_a_restored_population_goes_on_as_one_that_was_not_interrupted():
    world, config = Counted(), Accel(base=EVEN, proposer=Edits(edits=2), capacity=6, start=4)
    first = config.bind_world(world, TASKS, 3)
    for step in range(6):
        if step == 3:
            second = config.bind_world(world, TASKS, 3)
            second.restore(first.state())
        for curriculum in (first, second) if step >= 3 else (first,):
            groups = [played(curriculum.draw(4 * step + n), [1, n % 2]) for n in range(4)]
            observe(curriculum, *groups)
    third = config.bind_world(world, TASKS, 3)
    third.restore(first.state())
    for curriculum in (first, second, third):
        curriculum.observe([], [])  # as of a step that played nothing
    assert [third.draw(slot).id for slot in range(16, 30)] == [first.draw(slot).id for slot in range(16, 30)]
    assert any(member.edits > 1 for member in first.members)
    assert second.members == first.members
    assert second.metrics() == first.metrics()
    assert [second.draw(slot).id for slot in range(20, 30)] == [first.draw(slot).id for slot in range(20, 30)]


def test_metrics_tell_of_the_task_that_is_drawn_next():
    curriculum = population(sizes=[7])
    play(curriculum, {0: [1, 0], 1: [1, 1]})
    play(curriculum, {2: [0, 0], 3: [1, 1, 1, 1]})
    metrics = curriculum.metrics()
    worth = np.array([1 / 5, 3 / 20, 3 / 20])
    assert metrics["drawn_size"] == pytest.approx(0.5 * 7 + 0.5 * (worth / worth.sum()) @ [0, 1, 2])
    assert metrics["drawn_edits"] == pytest.approx(0.5)
    assert [metrics["population"], metrics["tasks_made"], metrics["never_played"]] == [4, 1, 0.25]


def test_metrics_of_a_number_that_only_some_tasks_have():
    @dataclass
    class Mixture(Counted):
        def bounds(self, like: Task) -> Mapping[str, Bounds]:
            return super().bounds(like) if like.env == "counted" else {}

    others = [Task("other", data, 7, "train") for data in ({"size": "big"}, {})]
    config = Accel(base=EVEN, proposer=Listed([]), start=6)
    curriculum = config.bind_world(Mixture(), [*TASKS, *others], 0)
    assert curriculum.metrics()["drawn_size"] == pytest.approx(1.5)  # of sizes 0 to 3, each as likely


@dataclass
class Given:
    """Random numbers that were chosen."""

    numbers: list[int]

    def integers(self, *limits: int) -> int:
        return self.numbers.pop(0)


def test_edits_move_numbers_by_their_steps_within_the_bounds():
    class World(Counted):
        def bounds(self, like: Task) -> Mapping[str, Bounds]:
            return {"size": Bounds(0, 9), "fill": Bounds(0, 0.3, 0.05), "holes": Bounds(0, 4, 2)}

    like = Task("counted", {"size": 5, "fill": 0.3, "holes": 1, "name": "a"}, 0, "train")
    history = TaskHistory([like], 1)
    # keys in order: fill, holes, size
    cases = [
        (Edits(edits=3), [2, 1, 2, 1, 0, 1, 77], {"size": 7, "fill": 0.3, "holes": 1}),
        (Edits(edits=3), [0, -1, 1, -1, 2, 0, 77], {"size": 5, "fill": 0.25, "holes": 0}),
        (Edits(edits=2, limits={"size": (2, 6)}), [0, 1, 0, 1, 77], {"size": 6, "fill": 0.3, "holes": 1}),
    ]
    for edits, numbers, expected in cases:
        task = edits.propose(history, 0, World(), Given(numbers))  # type: ignore[arg-type]
        assert task == Task("counted", {**expected, "name": "a"}, 77, "train")
        assert isinstance(task.data["size"], int)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"sise": (1, 2)}, "limits name 'sise', but the numbers .* are size"),
        ({"size": (3, 2)}, "from 3 to 2: expected bounds within 0 to 9"),
        ({"size": (10, 20)}, "from 10 to 20: expected bounds within 0 to 9"),
    ],
)
def test_limits_that_the_world_does_not_allow_are_refused(limits: Any, words: str):
    with pytest.raises(ConfigError, match=words):
        Accel(base=EVEN, proposer=Edits(limits=limits)).bind_world(Counted(), TASKS, 0)


def test_what_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="Blackjack makes none of data"):
        Accel().bind_world(Blackjack(), Blackjack().tasks("train"), 0)
    with pytest.raises(ConfigError, match="Mixed makes none of data"):
        Accel().bind_world(Mixed(worlds=(Blackjack(),)), Blackjack().tasks("train"), 0)
    with pytest.raises(ValueError, match="base = Cycle draws tasks in an order of its own"):
        Accel(base=Cycle())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start = 9 is above capacity = 4"):
        Accel(capacity=4, start=9)
    with pytest.raises(ValueError, match=r"accept = \[0.8, 0.2\] accepts nothing"):
        Accel(accept=(0.8, 0.2))
    with pytest.raises(ValueError, match="tasks can only be made for the training split"):
        Accel(base=Learnability(split="test"))


def test_a_population_begins_with_different_tasks_where_the_split_lists_some_twice():
    for seed in range(8):
        population = Accel(start=4, capacity=8).bind([*TASKS, *TASKS, *TASKS], seed)
        ids = [member.task.id for member in population.members]
        assert len(set(ids)) == len(ids) >= 3
