"""Checks a curriculum: what it draws, whether that depends on anything but its seed and what it observed, and whether
it resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from sojourn.abilities import Bounds, ObservesEvaluations, bound_curriculum
from sojourn.checks import played
from sojourn.checks.promise import (
    BrokenError,
    DoubtfulError,
    NotOfferedError,
    Promise,
    judge_all,
    member,
    require_config,
    require_methods,
)
from sojourn.checks.report import Report
from sojourn.checks.synthetic import content
from sojourn.protocols import Env, Stateful
from sojourn.types import Task

SEED = 7
TASKS = tuple(Task("made", {"number": number}, number, "train") for number in range(64))
SLOTS = [(slot, redraw) for slot in range(30) for redraw in range(3)]
ENDLESS = 1 << 40  # the length of a split whose tasks are generated
REDRAWS = 8  # so many redraws of a slot play its first task again by chance in one of 64**8 cases
STEPS, WIDTH = 40, 8  # of a run that a curriculum observes; each of its groups has four episodes
RESUMED_AT = (1, 7, 20)  # steps before which that run is resumed
OUTCOMES = {  # of the four episodes of a slot's group
    "of mixed success": lambda slot: [(slot * 5 + number * 3) % 4 < 2 for number in range(4)],
    "that were all won": lambda slot: [True] * 4,
    "that were all lost": lambda slot: [False] * 4,
}
READS = 10_000  # more than this many tasks read for one draw is a walk through the whole split


@dataclass
class Generated(Sequence[Task]):
    """A split with so many tasks that nobody can list them; it counts how many were asked for."""

    read: int = 0

    def __len__(self) -> int:
        return ENDLESS

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        self.read += 1
        if isinstance(index, slice) or self.read > READS:
            raise BrokenError(
                f"it lists the tasks of a split of {ENDLESS}: such a split is generated, one task at a time, by number"
            )
        return Task("made", {"number": index % ENDLESS}, index % ENDLESS, "train")


@dataclass(frozen=True)
class World:
    """The world of the made-up tasks, which makes others with a number below theirs or above."""

    listed: Sequence[Task]

    def tasks(self, split: str) -> Sequence[Task]:
        return self.listed if split == "train" else ()

    def make(self, task: Task) -> Env:
        raise NotImplementedError("a curriculum plays nothing itself")

    def bounds(self, like: Task) -> Mapping[str, Bounds]:
        return {"number": Bounds(0, len(TASKS) - 1)}

    def make_task(self, like: Task, data: Mapping[str, Any], seed: int) -> Task | None:
        return Task("made", dict(data), seed, "train") if data["number"] % 3 else None


@dataclass(frozen=True)
class Case:
    config: Any

    def bind(self, tasks: Sequence[Task] = TASKS) -> Any:
        """Returns the curriculum, bound to the tasks, and to a world that makes tasks where it makes any."""
        return bound_curriculum(self.config, World(tasks), tasks, SEED)


def check_curriculum(component: Any) -> Report:
    """Returns the verdicts on the config of a curriculum, which is bound to made-up tasks."""
    return Report(type(component).__name__, judge_all(PROMISES, Case(component)))


def drawn(curriculum: Any, places: Sequence[tuple[int, int]] = SLOTS) -> dict[tuple[int, int], str]:
    """Returns the ids of the tasks of these slots and redraws, drawn in this order."""
    return {(slot, redraw): curriculum.draw(slot, redraw).id for slot, redraw in places}


def _declares(case: Case) -> str:
    split = member(case.config, "split")
    if not isinstance(split, str) or not split:
        raise BrokenError(f"split = {split!r}: expected 'train' or 'test'")
    require_methods(case.config, ["bind"], "a curriculum's config")
    require_methods(case.bind(), ["draw", "observe"], "what bind() returns")
    return require_config(case.config)


def _draws(case: Case) -> str:
    for tasks in (TASKS, TASKS[:1]):
        curriculum = case.bind(tasks)
        for slot, redraw in SLOTS:
            task = curriculum.draw(slot, redraw)
            if not any(task is one for one in tasks):
                raise BrokenError(
                    f"slot {slot} plays {task!r:.80}: expected one of the {len(tasks)} tasks of its split"
                )
        curriculum.draw(SLOTS[0][0])  # the number of redraws is optional
    return f"{len(SLOTS)} draws of {len(TASKS)} tasks, and of one"


def _deterministic(case: Case) -> str:
    if difference := _difference(drawn(case.bind()), drawn(case.bind())):
        raise BrokenError(f"bound twice with the same seed, {difference}")
    return f"the same seed, the same {len(SLOTS)} draws"


def _any_order(case: Case) -> str:
    """Checks that a draw does not depend on those before it, as slots start in the order in which others finish."""
    if difference := _difference(drawn(case.bind()), drawn(case.bind(), SLOTS[::-1])):
        raise BrokenError(f"with the slots drawn in another order, {difference}: a run would depend on timing")
    curriculum = case.bind()
    if difference := _difference(drawn(curriculum), drawn(curriculum)):
        raise BrokenError(f"drawn again, {difference}: a resumed run draws the slots of its step again")
    return "forwards, backwards and again"


def _redraws(case: Case) -> str:
    """Checks that some redraw of each slot plays another task; one that is drawn by chance may be the same."""
    curriculum = case.bind()
    for slot in range(30):
        first = curriculum.draw(slot).id
        if all(curriculum.draw(slot, redraw).id == first for redraw in range(1, REDRAWS + 1)):
            raise DoubtfulError(f"slot {slot} plays the same task in all of {REDRAWS} redraws: they have no use")
    return "another task"


def _generated(case: Case) -> str:
    tasks = Generated()
    case.bind(tasks).draw(0)
    return f"{tasks.read} of {ENDLESS} tasks read"


def _observes(case: Case) -> str:
    curriculum = case.bind()
    for groups in (played.groups(), played.broken_groups(), []):
        scores = [played.scores(group) for group in groups]
        before = content(groups), content(scores)
        curriculum.observe(groups, scores)
        if before != (content(groups), content(scores)):
            raise BrokenError("the groups or scores are not what they were before observe(): they are facts")
        drawn(curriculum)
    return "failed groups and none at all included"


def _remembers(case: Case) -> str:
    """Checks that `state()` holds all that was observed, without which a resumed run would play other tasks."""
    learns = [_learns(case, what) for what in OUTCOMES]
    if not any(learns):
        raise NotOfferedError(f"its draws do not depend on what it observed in {STEPS} steps")
    return "by state() and restore()"


def _learns(case: Case, what: str) -> bool:
    """Plays a run with outcomes of a kind, and resumes it at some of its steps. Requires the same draws with and
    without a restart, at once and later. Returns whether they depend on what was observed."""
    curriculum, resumed, learns = case.bind(), dict[int, Any](), False
    for step in range(STEPS):
        if step in RESUMED_AT:
            resumed[step] = _resumed(case, curriculum)
        places = [(slot, redraw) for slot in range(step * WIDTH, (step + 1) * WIDTH) for redraw in range(2)]
        now, where = drawn(curriculum, places), f"after {step} steps {what} were observed"
        difference = _difference(drawn(case.bind(), places), now)
        if difference and not isinstance(curriculum, Stateful):
            raise BrokenError(f"{where}, {difference}: offer state() and restore() for what it remembers")
        for at, other in resumed.items():
            if lost := _difference(now, drawn(other, places)):
                raise BrokenError(f"{where}, and by state() and restore() in another one from step {at} on, {lost}")
        learns |= bool(difference)
        _observe([curriculum, *resumed.values()], step, what)
    return learns


def _resumed(case: Case, curriculum: Any) -> Any:
    """Returns the curriculum as a run that is resumed here has it."""
    resumed = case.bind()
    if isinstance(curriculum, Stateful):
        resumed.restore(played.saved(curriculum.state()))
    return resumed


def _observe(curricula: Sequence[Any], step: int, what: str) -> None:
    """Shows them what was played for a step, and every fifth time an evaluation of the same outcomes."""
    slots = range(step * WIDTH, (step + 1) * WIDTH)
    groups = [played.group_of(slot, curricula[0].draw(slot), OUTCOMES[what](slot)) for slot in slots]
    scores = [played.scores(group) for group in groups]
    for curriculum in curricula:
        curriculum.observe(groups, scores)
        if step % 5 == 4 and isinstance(curriculum, ObservesEvaluations):
            curriculum.observe_evaluation(groups, scores)


def _difference(first: dict[tuple[int, int], str], second: dict[tuple[int, int], str]) -> str:
    """Describes the first place where two draws differ; empty where there is none."""
    wrong = [place for place in first if first[place] != second[place]]
    return f"slot {wrong[0][0]}, redraw {wrong[0][1]}, plays another task" if wrong else ""


BOUND = ("it is bound to tasks",)
SOUND = (*BOUND, "it draws tasks of its split")
REPEATABLE = ("it is deterministic", "slots may be drawn in any order")
PROMISES = (
    Promise(BOUND[0], (), _declares),
    Promise(SOUND[1], BOUND, _draws),
    Promise("it is deterministic", SOUND, _deterministic),
    Promise("slots may be drawn in any order", (*SOUND, "it is deterministic"), _any_order),
    Promise("a redraw plays another task", SOUND, _redraws),
    Promise("a split may be generated", SOUND, _generated),
    Promise("it observes groups and leaves them", SOUND, _observes),
    Promise("its memory is saved", (*SOUND, *REPEATABLE, "it observes groups and leaves them"), _remembers),
)
