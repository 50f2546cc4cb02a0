import pytest

from sojourn.timeline import Timeline


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


def test_every_moment_belongs_to_the_first_activity_that_goes_on():
    clock = Clock()
    timeline = Timeline(now=clock)
    clock.time = 1
    with timeline.during("env"):
        clock.time = 3
        with timeline.during("sample"), timeline.during("env"):
            clock.time = 7
        with timeline.during("env"):
            clock.time = 8
        clock.time = 9
    clock.time = 14
    assert timeline.take() == {"train": 0, "publish": 0, "sample": 4, "env": 4, "other": 6}
    clock.time = 15
    assert timeline.take()["other"] == 1


def test_an_activity_that_fails_ends():
    clock = Clock()
    timeline = Timeline(now=clock)
    with pytest.raises(KeyError), timeline.during("train"):
        raise KeyError
    clock.time = 2
    assert timeline.take()["train"] == 0


def test_an_unknown_activity_is_refused():
    with pytest.raises(ValueError, match="no activity 'sleep'"), Timeline().during("sleep"):
        pass
