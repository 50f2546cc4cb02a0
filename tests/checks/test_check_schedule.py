"""Every schedule of ours keeps its promises; every broken one here breaks one, and that one is reported."""

import random
from dataclasses import dataclass, field

import pytest

from sojourn.checks.report import Outcome
from sojourn.checks.schedule import PROMISES, check_schedule
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build


@pytest.mark.parametrize("name", COMPONENTS["schedule"])
@pytest.mark.parametrize("warmup", [0, 20])
def test_ours_keep_every_promise(name, warmup):
    report = check_schedule(build("schedule", {"name": name, "warmup": warmup}).value)
    assert [v.outcome for v in report.verdicts] == [Outcome.PASSED] * len(PROMISES), report.verdicts


@dataclass(frozen=True)
class Halving:
    """Halves every tenth update; the broken ones change one thing."""

    def __call__(self, step, steps):
        return 0.5 ** (step // 10)


class Ends(Halving):
    """Divides by what is left, of which a stage of one update has nothing."""

    def __call__(self, step, steps):
        return 1 - step / (steps - 1)


class Falls(Halving):
    """Falls below 0 in a stage that is longer than thought."""

    def __call__(self, step, steps):
        return 1 - step / 500


class Unknown(Halving):
    def __call__(self, step, steps):
        return None


class Idle(Halving):
    def __call__(self, step, steps):
        return 0.0


class Random(Halving):
    def __call__(self, step, steps):
        return random.random()


@dataclass(frozen=True)
class Counting:
    """Counts its calls instead of asking for the update."""

    calls: list = field(default_factory=list)

    def __call__(self, step, steps):
        self.calls.append(step)
        return 1 / len(self.calls)


@pytest.mark.parametrize(
    ("broken", "promise", "words"),
    [
        (Ends(), "every update has a factor", "ZeroDivisionError"),
        (Falls(), "every update has a factor", "update 501 of 1000 has the factor -0.002"),
        (Unknown(), "every update has a factor", "update 0 of 1 has the factor None: expected a finite number"),
        (Idle(), "it trains", "nothing would be trained"),
        (Random(), "it is deterministic", "asked twice, update 0 of 1 has the factor"),
        (Counting(), "updates may be asked for in any order", "a resumed run would not be the same"),
    ],
)
def test_a_broken_schedule_is_caught(broken, promise, words):
    report = check_schedule(broken)
    assert report.failed == (promise,)
    assert words in report[promise].detail


class Late(Halving):
    def __call__(self, step, steps):
        return float(step >= 50)


class Doubling(Halving):
    def __call__(self, step, steps):
        return 2.0


class Plain:
    def __call__(self, step, steps):
        return 1


@pytest.mark.parametrize(
    ("doubtful", "promise", "words"),
    [
        (Late(), "it trains", "in a stage of 10 updates every factor is 0"),
        (Doubling(), "`lr` is the highest rate", "update 0 of 1 has the factor 2"),
        (Plain(), "a config can name it", "Plain is not a frozen dataclass"),
    ],
)
def test_what_is_worth_knowing_is_a_warning(doubtful, promise, words):
    report = check_schedule(doubtful)
    assert report.passed
    assert [v.promise for v in report.verdicts if v.outcome is Outcome.WARNED] == [promise]
    assert words in report[promise].detail
