"""Every estimator of ours keeps its promises; every broken one here breaks one, and that one is reported."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from sojourn.checks.estimator import PROMISES, check_estimator
from sojourn.checks.report import Outcome
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build
from sojourn.credit.grpo import GRPO
from sojourn.credit.reinforce import Reinforce
from sojourn.types import Credit

OPTIONAL = {"a constant added to all rewards changes nothing", "its memory is saved"}


@pytest.mark.parametrize("name", COMPONENTS["estimator"])
def test_ours_keep_every_promise(name):
    report = check_estimator(build("estimator", {"name": name}).value)
    odd = [v for v in report.verdicts if v.outcome is not Outcome.PASSED]
    assert {v.promise for v in odd} <= OPTIONAL, odd
    assert {v.outcome for v in odd} <= {Outcome.NOT_OFFERED}
    assert len(report.verdicts) == len(PROMISES)


def test_group_relative_is_a_property():
    promise = "a constant added to all rewards changes nothing"
    assert check_estimator(GRPO())[promise].outcome is Outcome.PASSED
    verdict = check_estimator(Reinforce(baseline="none"))[promise]
    assert verdict.outcome is Outcome.NOT_OFFERED
    assert "with +0.5 on every return" in verdict.detail


@dataclass(frozen=True)
class Sound:
    """Return minus the group's mean, by hand; the broken ones change one thing."""

    needs = frozenset[str]()

    def __call__(self, groups, scores, streams):
        return [
            [Credit.uniform(t, g) for t, g in zip(group.trajectories, self.gains(judged), strict=True)]
            for group, judged in zip(groups, scores, strict=True)
        ]

    def gains(self, judged):
        totals = np.array([score.total for score in judged])
        return totals - totals.mean() if len(totals) else totals


class DividesByNothing(Sound):
    def gains(self, judged):
        with np.errstate(all="ignore"):
            totals = np.array([score.total for score in judged])
            return (totals - totals.mean()) / totals.std(ddof=1) if len(totals) > 1 else totals


class DividesByOneLess(Sound):
    def gains(self, judged):
        with np.errstate(all="ignore"):
            totals = np.array([score.total for score in judged])
            return (totals - totals.mean()) / (np.float64(len(totals)) - 1) if len(totals) else totals


class AlwaysNaN(Sound):
    def gains(self, judged):
        return [float("nan")] * len(judged)


class FirstIsTheBaseline(Sound):
    def gains(self, judged):
        return [score.total - judged[0].total for score in judged]


class Random(Sound):
    generator = np.random.default_rng(0)

    def gains(self, judged):
        return self.generator.normal(size=len(judged))


class Mutates(Sound):
    def gains(self, judged):
        for score in judged:
            score.turns[:] -= score.turns.mean() if len(score.turns) else 0
        return super().gains(judged)


class OfEveryEpisode(Sound):
    """Forgets that an episode with an error has no credit."""

    def __call__(self, groups, scores, streams):
        return [
            [Credit.uniform(e.trajectories[0], g) for e, g in zip(group.episodes, self.gains(judged), strict=True)]
            for group, judged in zip(groups, scores, strict=True)
        ]


class OnlyLines(Sound):
    def __call__(self, groups, scores, streams):
        for t in (t for group in groups for t in group.trajectories):
            assert all(turn.parent == n - 1 for n, turn in enumerate(t.turns)), "not a line"
        return super().__call__(groups, scores, streams)


class NeedsATurn(Sound):
    def gains(self, judged):
        return [score.turns[-1] for score in judged]


class NeedsAGroup(Sound):
    def __call__(self, groups, scores, streams):
        np.concatenate([[s.total for s in judged] for judged in scores])
        return super().__call__(groups, scores, streams)


class OnePerTurn(Sound):
    def __call__(self, groups, scores, streams):
        return [[Credit(tuple(np.ones(1) for _ in t.turns)) for t in group.trajectories] for group in groups]


class OneList(Sound):
    def __call__(self, groups, scores, streams):
        return [credit for group in super().__call__(groups, scores, streams) for credit in group]


class Undeclared(Sound):
    def __call__(self, groups, scores, streams):
        streams["values"]
        return super().__call__(groups, scores, streams)


class Asks(Sound):
    def __call__(self, groups, scores, streams):
        if "values" in streams:
            raise AssertionError("it is not there")
        return super().__call__(groups, scores, streams)


class NeedsAWord(Sound):
    needs = "values"  # type: ignore[assignment]


class SaysRelative(Sound):
    group_relative = True

    def gains(self, judged):
        return [score.total for score in judged]


@dataclass(frozen=True)
class Remembers(Sound):
    """A running mean of returns as the baseline, kept in an array."""

    mean: np.ndarray = field(default_factory=lambda: np.zeros(1))

    def __call__(self, groups, scores, streams):
        credit = super().__call__(groups, scores, streams)
        totals = [score.total for judged in scores for score in judged]
        self.mean[0] += np.mean(totals) if totals else 0.0
        return credit

    def gains(self, judged):
        return [score.total - self.mean[0] for score in judged]


class Saves(Remembers):
    def state(self):
        return {"mean": float(self.mean[0])}

    def restore(self, state):
        self.mean[0] = state["mean"]


class SavesTooLittle(Saves):
    def restore(self, state):
        self.mean[0] = 0.0


BROKEN = {
    DividesByNothing: "a group of equal rewards is finite",
    DividesByOneLess: "a group of one is finite",
    AlwaysNaN: "credit fits the turns and is finite",
    OnePerTurn: "credit fits the turns and is finite",
    OneList: "credit fits the turns and is finite",
    FirstIsTheBaseline: "permuting episodes permutes credit",
    Random: "it is deterministic",
    Mutates: "its inputs are not modified",
    OfEveryEpisode: "failures and other seats are left out",
    OnlyLines: "forks and windows are credited",
    NeedsATurn: "truncated trajectories are credited",
    NeedsAGroup: "an empty step gives no credit",
    Undeclared: "it reads what it declares",
    Asks: "it reads what it declares",
    NeedsAWord: "it declares what it needs",
    SaysRelative: "a constant added to all rewards changes nothing",
    Remembers: "its memory is saved",
    SavesTooLittle: "its memory is saved",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_estimator_is_caught_by_the_promise_it_breaks(kind):
    report = check_estimator(kind())
    assert BROKEN[kind] in report.failed, [v for v in report.verdicts if v.outcome is not Outcome.PASSED]
    assert report[BROKEN[kind]].detail
    also = {"an empty step gives no credit"} if kind is OfEveryEpisode else set()  # its failures again
    assert set(report.failed) <= {BROKEN[kind]} | also


def test_sound_ones_pass():
    assert check_estimator(Sound()).passed
    report = check_estimator(Saves())
    assert report.passed
    assert report["its memory is saved"].outcome is Outcome.PASSED


def test_streams_are_made_for_those_who_need_them():
    class Values(Sound):
        needs = frozenset({"values"})

        def __call__(self, groups, scores, streams):
            return [[Credit(tuple(-v for v in values)) for values in group] for group in streams["values"]]

    class Idle(Sound):
        needs = frozenset({"values"})

    assert check_estimator(Values()).passed
    verdict = check_estimator(Idle())["it reads what it declares"]
    assert verdict.outcome is Outcome.WARNED
    assert "'values'" in verdict.detail


def test_what_cannot_be_compared_is_not_judged():
    report = check_estimator(Random())
    assert report["permuting episodes permutes credit"].detail == "needs: it is deterministic"
    report = check_estimator(AlwaysNaN())
    assert "expected finite numbers" in report["credit fits the turns and is finite"].detail
    assert report["a group of one is finite"].outcome is Outcome.NOT_JUDGED


def test_an_unfrozen_one_is_a_warning():
    class Plain:
        needs = frozenset[str]()

        def __call__(self, groups, scores, streams):
            return Sound()(groups, scores, streams)

    verdict = check_estimator(Plain())["it declares what it needs"]
    assert verdict.outcome is Outcome.WARNED
    assert "a config cannot name it" in verdict.detail
