"""Checks a curriculum: what it draws, whether that depends on anything but its seed and what it observed, and whether
it resumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

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
from sojourn.protocols import Stateful
from sojourn.types import Task

SEED = 7
TASKS = tuple(Task("made", {"number": number}, number, "train") for number in range(12))
SLOTS = [(slot, redraw) for slot in range(30) for redraw in range(3)]
ENDLESS = 1 << 40  # the length of a split whose tasks are generated
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
class Case:
    config: Any

    def bind(self, tasks: Sequence[Task] = TASKS) -> Any:
        return self.config.bind(tasks, SEED)


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
    return f"{len(SLOTS)} draws of 12 tasks, and of one"


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
    curriculum = case.bind()
    same = [slot for slot in range(30) if curriculum.draw(slot, 1).id == curriculum.draw(slot, 0).id]
    if same:
        raise DoubtfulError(f"slot {same[0]} plays the same task again when it is drawn again: redraws have no use")
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
    groups = played.groups()
    scores, learns = [played.scores(group) for group in groups], False
    for steps in (1, 17):
        curriculum = case.bind()
        for _ in range(steps):
            curriculum.observe(groups, scores)
        learns |= _resumes(case, curriculum, steps)
    if not learns:
        raise NotOfferedError("its draws do not depend on what it observed")
    return "by state() and restore()"


def _resumes(case: Case, curriculum: Any, steps: int) -> bool:
    """Requires the same draws after a restart. Returns whether they depend on what was observed."""
    later, where = drawn(curriculum), f"after {steps} steps were observed"
    difference = _difference(drawn(case.bind()), later)
    if not isinstance(curriculum, Stateful):
        if difference:
            raise BrokenError(f"{where}, {difference}: offer state() and restore() for what it remembers")
        return False
    resumed = case.bind()
    resumed.restore(played.saved(curriculum.state()))
    if lost := _difference(later, drawn(resumed)):
        raise BrokenError(f"{where}, and by state() and restore() in another one, {lost}")
    return bool(difference)


def _difference(first: dict[tuple[int, int], str], second: dict[tuple[int, int], str]) -> str:
    """Describes the first place where two draws differ; empty where there is none."""
    wrong = [place for place in first if first[place] != second[place]]
    return f"slot {wrong[0][0]}, redraw {wrong[0][1]}, plays another task" if wrong else ""


BOUND = ("it is bound to tasks",)
SOUND = (*BOUND, "it draws tasks of its split")
PROMISES = (
    Promise(BOUND[0], (), _declares),
    Promise(SOUND[1], BOUND, _draws),
    Promise("it is deterministic", SOUND, _deterministic),
    Promise("slots may be drawn in any order", (*SOUND, "it is deterministic"), _any_order),
    Promise("a redraw plays another task", SOUND, _redraws),
    Promise("a split may be generated", SOUND, _generated),
    Promise("it observes groups and leaves them", SOUND, _observes),
    Promise("its memory is saved", (*SOUND, "it is deterministic", "it observes groups and leaves them"), _remembers),
)
