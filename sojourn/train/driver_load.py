"""Records what the parts of a run do: of its sampler, trainer and world, and of the process that drives them."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sojourn.abilities import PartLoad, ReportsParts, queue_of
from sojourn.gauge import resident_bytes
from sojourn.record.metrics import Sinks
from sojourn.record.part_recorder import LoopLag, PartRecorder
from sojourn.record.parts import PARTS, PartsFile
from sojourn.rollout.world import worlds_of
from sojourn.train.assemble import Components
from sojourn.train.routed_sampler import OfModel


@dataclass
class Driver:
    """The process that drives a run, as one of its parts (`ReportsParts`)."""

    components: Components
    lag: LoopLag
    _taken: float = field(default_factory=time.monotonic)
    _computed: float = field(default_factory=time.thread_time)

    async def part_loads(self) -> Sequence[PartLoad]:
        """Returns the load of the event loop, whose thread this is, and what it has in flight."""
        now, computed = time.monotonic(), time.thread_time()
        share = (computed - self._computed) / max(now - self._taken, 1e-9)
        self._taken, self._computed = now, computed
        playing, (mean_s, most_s) = self.components.runner.playing, self.lag.take()
        queue, plays = queue_of(self.components.source), playing.gauge.take()
        numbers = {
            "busy_share": min(share, 1.0),
            "plays_mean": plays.mean,
            "memory_bytes": resident_bytes(),
            "loop_lag_mean_s": mean_s,
            "loop_lag_max_s": most_s,
            "groups_playing": queue.playing,
            "groups_complete": queue.complete,
            "plays": playing.gauge.count,
        }
        return [PartLoad(name="driver", kind="driver", facts={"node": socket.gethostname()}, numbers=numbers)]


@asynccontextmanager
async def recorded_parts(
    folder: Path, components: Components, sinks: Sinks, tell: Callable[[str], None]
) -> AsyncIterator[None]:
    """Records inside the context, after each step of the run, what its parts do."""
    lag = LoopLag()
    family = components.runner.family
    named = {**components.trainers, **components.reward_models}
    trainers = [OfModel(name, one) for name, one in named.items() if isinstance(one, ReportsParts)]
    others = [*trainers, components.sampler, family, *(one for one in worlds_of(family) if one is not family)]
    reporters = [Driver(components, lag), *(one for one in others if isinstance(one, ReportsParts))]
    async with PartRecorder(PartsFile(folder / PARTS), reporters, lag, tell) as recorder:
        sinks.add(recorder)
        yield
