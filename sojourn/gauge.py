"""Measures how busy a part of a run is, and how much memory its process has."""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = resource.getpagesize()


class Busy(NamedTuple):
    """Says how much a part had to do over `over_s` seconds: the share of them in which it did anything, and how many
    things it did at once in the mean."""

    over_s: float
    share: float
    mean: float


@dataclass
class Gauge:
    """Follows how many things a part does at once. Use it in one thread."""

    now: Callable[[], float] = time.monotonic
    count: int = 0
    busy_s: float = 0.0  # in which there was anything to do, since the beginning
    _sum_s: float = 0.0  # the same, each second counted as often as there were things to do
    _changed: float = field(init=False)
    _taken: tuple[float, float, float] = field(init=False)  # the time and both sums at the last `take`

    def __post_init__(self) -> None:
        self._changed = self.now()
        self._taken = (self._changed, 0.0, 0.0)

    def add(self, change: int) -> None:
        """Counts things that begin, or (with a negative number) end."""
        now = self.now()
        self.busy_s += (now - self._changed) * (self.count > 0)
        self._sum_s += (now - self._changed) * self.count
        self._changed, self.count = now, self.count + change

    @contextmanager
    def during(self) -> Iterator[None]:
        """Counts one thing inside the context."""
        self.add(1)
        try:
            yield
        finally:
            self.add(-1)

    def take(self) -> Busy:
        """Returns what was measured since the last call."""
        self.add(0)
        (begun, busy_s, sum_s), self._taken = self._taken, (self._changed, self.busy_s, self._sum_s)
        over = max(self._changed - begun, 1e-9)
        return Busy(over, min((self.busy_s - busy_s) / over, 1.0), (self._sum_s - sum_s) / over)


class Work(NamedTuple):
    """Says how many passes with gradients a trainer has done, how many seconds the last of them took, and for how many
    the trainer computed anything."""

    passes: int = 0
    last_pass_s: float = 0.0
    busy_s: float = 0.0

    def numbers(self, before: Work) -> dict[str, float]:
        """Returns what `PartLoad` has of a trainer, since it had done the work `before`."""
        return {"passes": self.passes - before.passes, "last_pass_s": self.last_pass_s}


def resident_bytes(process: int | str = "self") -> int:
    """Returns the resident memory of a process, by default this one; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE_BYTES
    return 0


def children_bytes() -> int:
    """Returns the resident memory of all processes that this one started, and of those that they started. What
    several of them share counts in each."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children[parent].append(int(entry.name))
    found = [os.getpid()]
    for process in found:
        found += children[process]
    return sum(map(resident_bytes, found[1:]))
