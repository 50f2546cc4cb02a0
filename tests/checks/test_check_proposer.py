"""Every proposer of ours keeps its promises; every broken one here breaks one, and that one is reported."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from sojourn.checks.proposer import PROMISES, check_proposer
from sojourn.checks.report import Outcome
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build
from sojourn.errors import ConfigError
from sojourn.types import Task


@pytest.mark.parametrize("name", COMPONENTS["proposer"])
def test_ours_keep_every_promise(name):
    report = check_proposer(build("proposer", {"name": name}).value)
    assert [v.outcome for v in report.verdicts] == [Outcome.PASSED] * len(PROMISES), report.verdicts


@dataclass(frozen=True)
class Larger:
    """Proposes tasks that are one larger; the broken ones change one thing."""

    step: int = 1

    def check(self, bounds):
        pass

    def propose(self, history, parent, world, rng):
        like = history.pool[parent]
        data = self.changed(like, rng)
        return world.make_task(like, data, int(rng.integers(1000)))

    def changed(self, like, rng):
        return {**like.data, "size": min(like.data["size"] + self.step, 9)}


class Beyond(Larger):
    """Knows no upper bound."""

    def changed(self, like, rng):
        return {**like.data, "size": like.data["size"] + 1}


class Halves(Larger):
    """Makes a fraction of a whole number."""

    def changed(self, like, rng):
        return {**like.data, "size": max(like.data["size"] / 2, 1)}


class Forgets(Larger):
    """Proposes the numbers alone."""

    def changed(self, like, rng):
        return {"size": like.data["size"]}


class Renames(Larger):
    """Changes what the world lets nobody change."""

    def changed(self, like, rng):
        return {**like.data, "place": "attic"}


class Unasked(Larger):
    """Makes its tasks itself."""

    def propose(self, history, parent, world, rng):
        return Task("made", dict(history.pool[parent].data), int(rng.integers(1000)), "train")


class Insists(Larger):
    """Takes the task that it began with where the world makes none."""

    def propose(self, history, parent, world, rng):
        return super().propose(history, parent, world, rng) or history.pool[parent]


class Random(Larger):
    """Draws from a generator of its own."""

    def propose(self, history, parent, world, rng):
        return super().propose(history, parent, world, np.random.default_rng())


@dataclass(frozen=True)
class Counting(Larger):
    """Counts its proposals."""

    count: list[int] = field(default_factory=lambda: [0])

    def changed(self, like, rng):
        self.count[0] += 1
        return {**like.data, "size": 1 + self.count[0] % 9}


class Spoils(Larger):
    """Changes the task itself."""

    def changed(self, like, rng):
        like.data["share"] = 1.0
        return {**like.data}


class Erases(Larger):
    """Changes what is known of the tasks."""

    def propose(self, history, parent, world, rng):
        history.of.seen[:] = -1
        return super().propose(history, parent, world, rng)


class Silent(Larger):
    def propose(self, history, parent, world, rng):
        return None


class Elsewhere(Larger):
    def check(self, bounds):
        raise ConfigError("no rooms")


class Undeclared:
    """Is no frozen dataclass."""

    check, propose, changed, step = Larger.check, Larger.propose, Larger.changed, 1


class Half(Larger):
    check = None


BROKEN = {
    Beyond: "it keeps to the world's bounds",
    Halves: "it keeps to the world's bounds",
    Forgets: "it keeps to the world's bounds",
    Renames: "it keeps to the world's bounds",
    Unasked: "its tasks are the world's",
    Insists: "it takes no for an answer",
    Random: "it is deterministic",
    Counting: "it is deterministic",
    Spoils: "it changes nothing that was played",
    Erases: "it changes nothing that was played",
    Half: "it has all methods",
}
WARNED = {
    Silent: "its tasks are the world's",
    Elsewhere: "it knows the numbers of a world",
    Undeclared: "a config can name it",
}


def test_the_sound_one_passes():
    assert {v.outcome for v in check_proposer(Larger()).verdicts} == {Outcome.PASSED}


@pytest.mark.parametrize(("broken", "promise"), BROKEN.items())
def test_a_broken_promise_is_reported_and_no_other(broken, promise):
    report = check_proposer(broken())
    assert [v.promise for v in report.verdicts if v.outcome is Outcome.FAILED] == [promise], report.verdicts
    assert not report.passed


@pytest.mark.parametrize(("doubtful", "promise"), WARNED.items())
def test_what_is_worth_knowing_is_a_warning(doubtful, promise):
    report = check_proposer(doubtful())
    assert [v.promise for v in report.verdicts if v.outcome is Outcome.WARNED] == [promise], report.verdicts
    assert report.passed


def test_one_for_another_world_is_not_judged_by_this_one():
    outcomes = [v.outcome for v in check_proposer(Elsewhere()).verdicts]
    assert outcomes.count(Outcome.NOT_OFFERED) == 5
