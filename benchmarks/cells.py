"""One piece of work, done by several engines in turn, and what of it is reported."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from floor import Costs, Machine
from worker import LateError, Worker

BEGAN = time.monotonic()


class Effort(NamedTuple):
    """How long to measure: repeats, fewer where an engine has taken `enough_s`; nothing new begins after `until`."""

    repeats: int
    enough_s: float
    limit_s: float  # for one call of an engine
    until: float  # seconds since the program began


def elapsed() -> float:
    return time.monotonic() - BEGAN


def say(text: str) -> None:
    print(f"{elapsed():6.0f} s  {text}", file=sys.stderr, flush=True)


def reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


@dataclass(eq=False)
class Cell:
    """`tokens` are what its rates count; `least` is how long the machine needs for it at least."""

    name: str
    tokens: int
    least: Callable[[Costs], float]
    times: dict[str, list[float]] = field(default_factory=dict)
    machines: list[Machine] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def run(
        self,
        workers: Sequence[Worker],
        work: Callable[[Worker], float],
        effort: Effort,
        machine: Callable[[], Machine],
    ) -> None:
        """The first time of each warms up, where it is short enough to be done again. What the machine can do takes its
        turn with the engines, as what else runs there slows all of them."""
        self.times = {worker.name: [] for worker in workers}
        for repeat in range(effort.repeats + 1):
            going = [w for w in workers if w.name not in self.left_out]
            due = [w for w in going if not repeat or sum(self.times[w.name]) < effort.enough_s]
            self.machines += [machine()] if due else []
            for worker in due:
                taken = self.times[worker.name]
                if elapsed() < effort.until:
                    self._once(worker, work, taken)
                elif not taken:
                    self.left_out[worker.name] = "not begun: the time for the whole was over"

    def _once(self, worker: Worker, work: Callable[[Worker], float], taken: list[float]) -> None:
        try:
            taken.append(work(worker))
            say(f"{self.name}: {worker.name} {taken[-1]:.2f} s")
        except (LateError, RuntimeError) as error:
            self.left_out[worker.name] = reason(error)
            say(f"{self.name}: {worker.name} is left out: {reason(error)}")

    @property
    def seconds(self) -> dict[str, float]:
        """The median of each engine."""
        return {name: statistics.median(taken[1:] or taken) for name, taken in self.times.items() if taken}

    @property
    def machine(self) -> Machine:
        return Machine(*map(statistics.median, zip(*self.machines, strict=True)))

    def figures(self, model: Any) -> dict[str, Any]:
        floor_s, took = self.least(Costs(model, self.machine)), self.seconds
        ours = took.get("sojourn")
        return {
            "tokens_per_s": {name: round(self.tokens / s, 1) for name, s in took.items()},
            "machine": {key: round(value, 1) for key, value in self.machine._asdict().items()},
            "floor_tokens_per_s": round(self.tokens / floor_s, 1),
            "seconds": {name: round(s, 3) for name, s in took.items()},
            "floor_s": round(floor_s, 3),
            "times_the_floor": {name: round(s / floor_s, 2) for name, s in took.items()},
            "times_sojourn": {name: round(s / ours, 2) for name, s in took.items()} if ours else {},
            "measured": {name: max(len(taken) - 1, 1) for name, taken in self.times.items() if taken},
            "left_out": self.left_out,
        }
