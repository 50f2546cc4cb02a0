"""Every filter of ours keeps its promises; every broken one here breaks one, and that one is reported."""

import itertools
from dataclasses import dataclass, field

import pytest

from sojourn.checks.filter import PROMISES, check_filter
from sojourn.checks.report import Outcome
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build


@pytest.mark.parametrize("name", COMPONENTS["filter"])
def test_ours_keep_every_promise(name):
    report = check_filter(build("filter", {"name": name}).value)
    assert [v.outcome for v in report.verdicts] == [Outcome.PASSED] * len(PROMISES), report.verdicts


@dataclass(frozen=True)
class Sound:
    """Keeps the episodes that did not fail; the broken ones change one thing."""

    def __call__(self, group, scores):
        return [number for number, episode in enumerate(group.episodes) if episode.error is None]


@dataclass(frozen=True)
class Ids(Sound):
    def __call__(self, group, scores):
        return [episode.id for episode in group.episodes]


@dataclass(frozen=True)
class Beyond(Sound):
    def __call__(self, group, scores):
        return [len(group.episodes)]


@dataclass(frozen=True)
class Twice(Sound):
    def __call__(self, group, scores):
        return [0, 0]


@dataclass(frozen=True)
class Nothing(Sound):
    def __call__(self, group, scores):
        return []


@dataclass(frozen=True)
class First(Sound):
    def __call__(self, group, scores):
        return [0]


CALLS = itertools.count()


@dataclass(frozen=True)
class Alternating(Sound):
    def __call__(self, group, scores):
        return [next(CALLS) % 2] if len(group.episodes) > 1 else [0]


@dataclass(frozen=True)
class Scores(Sound):
    """Needs a score for every episode, which those that failed do not have."""

    def __call__(self, group, scores):
        return [number for number in range(len(group.episodes)) if scores[number].total >= -100]


@dataclass(frozen=True)
class Flattening(Sound):
    def __call__(self, group, scores):
        for score in scores:
            score.turns[:] = 0
        return super().__call__(group, scores)


@dataclass
class Thawed(Sound.__mro__[-1]):
    kept: list = field(default_factory=list)

    def __call__(self, group, scores):
        return list(range(len(group.episodes)))


@pytest.mark.parametrize(
    ("broken", "promise", "words"),
    [
        (Ids(), "it chooses episodes of the group", "expected numbers of episodes"),
        (Beyond(), "it chooses episodes of the group", "it chose episode 4 of 4"),
        (Twice(), "it chooses episodes of the group", "expected each episode once"),
        (Scores(), "groups with failures are filtered", "IndexError"),
        (Alternating(), "it is deterministic", "a resumed run would train other episodes"),
        (First(), "permuting episodes chooses the same ones", "not by its place"),
        (Flattening(), "its inputs are not modified", "only return numbers"),
    ],
)
def test_a_broken_filter_is_caught(broken, promise, words):
    report = check_filter(broken)
    assert report.failed == (promise,)
    assert words in report[promise].detail


def test_what_is_worth_knowing_is_a_warning():
    assert check_filter(Sound()).passed
    assert check_filter(Nothing())["it chooses episodes of the group"].outcome is Outcome.WARNED
    assert check_filter(Thawed())["a config can name it"].outcome is Outcome.WARNED
