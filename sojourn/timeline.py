"""Measures where a run's time goes when several activities overlap."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Timeline:
    """Assigns every moment to the first of `activities` that is active, or to "other", so that the times add up.

    Thus "env" is the time in which the run waits for its worlds and for nothing else. Use it only in the thread of the
    event loop: enter an activity there, around what is awaited.
    """

    activities: tuple[str, ...] = ("train", "publish", "sample", "env")
    now: Callable[[], float] = time.monotonic
    _active: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        self._last = self.now()

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Marks an activity as active inside the context; contexts may overlap and nest."""
        if activity not in self.activities:
            raise ValueError(f"there is no activity '{activity}': it must be one of {', '.join(self.activities)}")
        self._advance()
        self._active[activity] += 1
        try:
            yield
        finally:
            self._advance()
            self._active[activity] -= 1

    def take(self) -> Mapping[str, float]:
        """Returns the seconds of each activity, and of "other", since the last call."""
        self._advance()
        spent = {name: self._spent[name] for name in (*self.activities, "other")}
        self._spent.clear()
        return spent

    def _advance(self) -> None:
        now, first = self.now(), "other"
        for name in self.activities:
            if self._active[name]:
                first = name
                break
        self._spent[first] += now - self._last
        self._last = now
