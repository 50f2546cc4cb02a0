"""Every curriculum of ours keeps its promises; every broken one here breaks one, and that one is reported."""

import random
from dataclasses import dataclass, field

import pytest

from sojourn.checks.curriculum import PROMISES, TASKS, check_curriculum
from sojourn.checks.report import Outcome
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build
from sojourn.protocols import Stateful
from sojourn.types import Task

MEMORY = "its memory is saved"


@pytest.mark.parametrize("name", COMPONENTS["curriculum"])
def test_ours_keep_every_promise(name):
    curriculum = build("curriculum", {"name": name}).value
    report = check_curriculum(curriculum)
    odd = [v for v in report.verdicts if v.outcome is not Outcome.PASSED]
    remembers = isinstance(curriculum.bind(TASKS, 0), Stateful)
    assert [(v.promise, v.outcome) for v in odd] == ([] if remembers else [(MEMORY, Outcome.NOT_OFFERED)])
    assert len(report.verdicts) == len(PROMISES)


@dataclass
class Learning:
    """Plays the next tasks once something was won; the broken ones change one thing."""

    tasks: object
    seed: int
    won: int = 0
    other: list = field(default_factory=list)

    def draw(self, slot, redraw=0):
        return self.tasks[(slot + redraw + self.won) % len(self.tasks)]

    def observe(self, groups, scores):
        self.won += sum(t.success for group in groups for t in group.trajectories)

    def state(self):
        return {"won": self.won}

    def restore(self, state):
        self.won = state["won"]


class Invents(Learning):
    def draw(self, slot, redraw=0):
        return Task("made", {"number": slot % 12}, slot % 12, "train")


class Random(Learning):
    def draw(self, slot, redraw=0):
        return random.choice(self.tasks)


class Consumes(Learning):
    """Plays its tasks in the order in which they are asked for."""

    def draw(self, slot, redraw=0):
        self.other.append(slot)
        return self.tasks[(len(self.other) + redraw) % len(self.tasks)]


class Stubborn(Learning):
    def draw(self, slot, redraw=0):
        return super().draw(slot)


@dataclass
class Lists(Learning):
    def __post_init__(self):
        self.tasks = [self.tasks[number] for number in range(min(len(self.tasks), 20_000))]


class NeedsEpisodes(Learning):
    def observe(self, groups, scores):
        self.won += sum(t.success for group in groups for t in [group.trajectories[0]])


class Flattening(Learning):
    def observe(self, groups, scores):
        super().observe(groups, scores)
        for some in scores:
            for score in some:
                score.turns[:] = 0


class Forgets(Learning):
    def state(self):
        return {"won": 0}


class Unkept(Learning):
    def state(self):
        return {"won": {self.won}}


@dataclass
class Climbs(Learning):
    """Plays the next tasks once the last 128 trajectories were mostly won, as the curriculum of the docs does."""

    width = 16

    def __post_init__(self):
        self.rung, self.seen = 0, []

    def draw(self, slot, redraw=0):
        return self.tasks[(self.rung * self.width + (slot + redraw) % self.width) % len(self.tasks)]

    def observe(self, groups, scores):
        self.seen = [*self.seen, *(t.success for group in groups for t in group.trajectories)][-8 * self.width :]
        if len(self.seen) == 8 * self.width and sum(self.seen) > 0.66 * len(self.seen):
            self.rung, self.seen = self.rung + 1, []

    def state(self):
        return {"rung": self.rung, "seen": [bool(one) for one in self.seen]}

    def restore(self, state):
        self.rung, self.seen = state["rung"], list(state["seen"])


class ClimbsUnsaved(Climbs):
    state = restore = None


class ForgetsRung(Climbs):
    def restore(self, state):
        self.seen = list(state["seen"])


class ForgetsSeen(Climbs):
    """Draws the same tasks at first when it is resumed, and climbs later than without a restart."""

    def restore(self, state):
        self.rung = state["rung"]


class GivesUp(Climbs):
    """Plays easier tasks where nearly all is lost."""

    def observe(self, groups, scores):
        super().observe([], [])
        self.seen = [*self.seen, *(not t.success for group in groups for t in group.trajectories)][-8 * self.width :]
        if len(self.seen) == 8 * self.width and sum(self.seen) > 0.9 * len(self.seen):
            self.rung, self.seen = self.rung - 1, []


class GivesUpUnsaved(GivesUp):
    state = restore = None


class Evaluated(Learning):
    """Plays other tasks after an evaluation that was won."""

    def observe(self, groups, scores):
        pass

    def observe_evaluation(self, groups, scores):
        super().observe(groups, scores)


class EvaluatedForgets(Evaluated):
    def state(self):
        return {"won": 0}


@dataclass
class Dice(Learning):
    """Draws each task by chance, a redraw, too, which may be the same."""

    def draw(self, slot, redraw=0):
        return random.Random(f"{self.seed} {self.won} {slot} {redraw}").choice(self.tasks)


class NoState:
    def __init__(self, tasks, seed):
        self.learning = Learning(tasks, seed)
        self.draw, self.observe = self.learning.draw, self.learning.observe


class NoObserve:
    def __init__(self, tasks, seed):
        self.draw = Learning(tasks, seed).draw


@dataclass(frozen=True)
class Config:
    cls: type = Learning
    split: str = "train"

    def bind(self, tasks, seed):
        return self.cls(tasks, seed)


@pytest.mark.parametrize("cls", [Learning, Climbs, GivesUp, Evaluated, Dice])
def test_a_sound_one_that_learns_passes_and_is_resumed(cls):
    report = check_curriculum(Config(cls))
    assert [v.outcome for v in report.verdicts] == [Outcome.PASSED] * len(PROMISES), report.verdicts


@pytest.mark.parametrize(
    ("broken", "promise", "words"),
    [
        (Config(split=""), "it is bound to tasks", "expected 'train' or 'test'"),
        (Config(NoObserve), "it is bound to tasks", "NoObserve has no observe()"),
        (Config(Invents), "it draws tasks of its split", "expected one of the 64 tasks of its split"),
        (Config(Random), "it is deterministic", "bound twice with the same seed"),
        (Config(Consumes), "slots may be drawn in any order", "a run would depend on timing"),
        (Config(Lists), "a split may be generated", "it lists the tasks"),
        (Config(NeedsEpisodes), "it observes groups and leaves them", "IndexError"),
        (Config(Flattening), "it observes groups and leaves them", "they are facts"),
        (Config(NoState), MEMORY, "offer state() and restore()"),
        (Config(Forgets), MEMORY, "by state() and restore() in another one"),
        (Config(ClimbsUnsaved), MEMORY, "offer state() and restore()"),
        (Config(GivesUpUnsaved), MEMORY, "offer state() and restore()"),
        (Config(ForgetsRung), MEMORY, "by state() and restore() in another one"),
        (Config(ForgetsSeen), MEMORY, "by state() and restore() in another one"),
        (Config(EvaluatedForgets), MEMORY, "by state() and restore() in another one"),
        (Config(Unkept), MEMORY, "cannot be kept in a checkpoint"),
    ],
)
def test_a_broken_curriculum_is_caught(broken, promise, words):
    report = check_curriculum(broken)
    assert report.failed == (promise,)
    assert words in report[promise].detail


def test_a_redraw_of_the_same_task_is_a_warning():
    report = check_curriculum(Config(Stubborn))
    assert report.passed
    assert report["a redraw plays another task"].outcome is Outcome.WARNED
