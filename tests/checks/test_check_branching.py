"""Every branching rule of ours keeps its promises; every broken one here breaks one, and that one is reported."""

import itertools
from dataclasses import dataclass

import pytest

from sojourn.branching.rule import Fork
from sojourn.checks.branching import PROMISES, check_branching
from sojourn.checks.report import Outcome
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build


@pytest.mark.parametrize("name", COMPONENTS["branching"])
def test_ours_keep_every_promise(name):
    report = check_branching(build("branching", {"name": name}).value)
    assert [v.outcome for v in report.verdicts] == [Outcome.PASSED] * len(PROMISES), report.verdicts


@dataclass(frozen=True)
class Sound:
    """Forks once before the second turn; the broken ones change one thing."""

    leaves: int = 4

    def __call__(self, point):
        return [Fork(1, 1, "")] if point.turn == 1 and not point.over and not point.began else []


@dataclass(frozen=True)
class Beyond(Sound):
    def __call__(self, point):
        return [Fork(point.turn + 1, 1, "")]


@dataclass(frozen=True)
class AtTheEnd(Sound):
    def __call__(self, point):
        return [Fork(point.turn, 1, "")] if point.over else []


@dataclass(frozen=True)
class Nobody(Sound):
    def __call__(self, point):
        return [Fork(point.began, 0, "")]


CALLS = itertools.count()


@dataclass(frozen=True)
class Alternating(Sound):
    def __call__(self, point):
        return [Fork(point.began, 1, "")] if next(CALLS) % 2 else []


@dataclass(frozen=True)
class Greedy(Sound):
    def __call__(self, point):
        for trajectory in point.trajectories.values():
            for turn in trajectory.turns:
                turn.info.clear()
        return super().__call__(point)


@dataclass(frozen=True)
class Never(Sound):
    def __call__(self, point):
        return []


@dataclass(frozen=True)
class SoundRounds(Sound):
    """Forks the second play once; the broken ones change one thing."""

    def after_round(self, number, plays):
        return [Fork(1, 1, "", play=1)] if plays[1].turn > 1 else []


@dataclass(frozen=True)
class NoSuchPlay(SoundRounds):
    def after_round(self, number, plays):
        return [Fork(0, 1, "", play=len(plays))]


@dataclass(frozen=True)
class BeyondRounds(SoundRounds):
    def after_round(self, number, plays):
        return [Fork(play.turn, 1, "", number) for number, play in enumerate(plays)]


@dataclass(frozen=True)
class AlternatingRounds(SoundRounds):
    def after_round(self, number, plays):
        return super().after_round(number, plays) if next(CALLS) % 2 else []


@pytest.mark.parametrize(
    ("broken", "promise", "words"),
    [
        (Sound(leaves=1), "it says how large a tree may become", "leaves = 1"),
        (Beyond(), "it forks plays before their own turns", "before its own turns only"),
        (AtTheEnd(), "it forks plays before their own turns", "whose own turns are"),
        (Nobody(), "it forks plays before their own turns", "into 0 plays"),
        (Alternating(), "it is deterministic", "draw from point.rng"),
        (NoSuchPlay(), "it forks plays before their own turns", "expected a number from 0 on"),
        (BeyondRounds(), "it forks plays before their own turns", "before its own turns only"),
        (AlternatingRounds(), "it is deterministic", "draw from point.rng"),
        (Greedy(), "its inputs are not modified", "only return forks"),
    ],
)
def test_a_broken_rule_is_caught(broken, promise, words):
    report = check_branching(broken)
    assert report.failed == (promise,)
    assert words in report[promise].detail


def test_what_is_worth_knowing_is_a_warning():
    assert check_branching(Sound()).passed
    assert check_branching(SoundRounds()).passed
    assert check_branching(Never())["it forks plays before their own turns"].outcome is Outcome.WARNED
