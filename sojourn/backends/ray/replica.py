"""One replica of a sampler, as the driver sees it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sojourn.abilities import PartLoad, PartState
from sojourn.backends.ray.reports import Contact, Heard
from sojourn.backends.ray.sampler_actor import SamplerReport
from sojourn.backends.torch.sampler.engine_stats import EngineStats
from sojourn.gauge import Gauge

KNOWN_BLOCKS = 100_000  # of each replica, the newest ones
DECAY = 0.98  # of what is known of a replica's pace, with each of its answers
ANEW = "its process has ended, and is started anew"


@dataclass(eq=False)
class Replica:
    """One replica as the driver sees it: its actor, which weights it has, how many requests it computes."""

    name: str
    actor: Any
    version: int = -1  # of its weights; -1 where that is unknown, as it is being loaded or is down
    running: int = 0
    slowness: float = 1.0  # how many times as long as the median replica it takes for a token, where that is more
    seconds: float = 0.0  # that its last answers took, and
    tokens: float = 0.0  # what they sampled in it
    failures: int = 0
    before: EngineStats = field(default_factory=EngineStats)
    loaded: EngineStats = field(default_factory=EngineStats)  # at the last `part_load`
    gauge: Gauge = field(default_factory=Gauge)  # of its requests
    contact: Contact = field(default_factory=Contact)
    blocks: OrderedDict[bytes, None] = field(default_factory=OrderedDict[bytes, None])
    loading: asyncio.Task[None] | None = None
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # replaced whenever it is ready, or awaited no more

    def settle(self) -> None:
        """Wakes the requests that wait for it."""
        self.settled.set()
        self.settled = asyncio.Event()

    @property
    def load(self) -> float:
        """Returns what it has to do, in requests of a replica that is as fast as others."""
        return self.running * self.slowness

    def note(self, seconds: float, tokens: int) -> None:
        """Notes how long an answer took."""
        self.seconds, self.tokens = DECAY * self.seconds + seconds, DECAY * self.tokens + tokens

    def remember(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.blocks[key] = None
            self.blocks.move_to_end(key)
        while len(self.blocks) > KNOWN_BLOCKS:
            self.blocks.popitem(last=False)

    async def part_load(self) -> PartLoad:
        """Returns what the replica does; one that is down is not asked."""
        busy, running = self.gauge.take(), self.running
        heard = await self._heard()
        numbers: dict[str, float] = {"busy_share": busy.share, "requests_mean": busy.mean}
        if heard.answer is not None:
            said: SamplerReport = heard.answer
            before = self.loaded if said.stats.steps >= self.loaded.steps else EngineStats()  # it was started anew
            self.loaded, self.contact.report = said.stats, said.process
            engine = said.stats.numbers(before, busy.over_s)
            numbers["sampled_tokens_per_s"] = engine["sampled_tokens_per_s"]
            numbers |= {"weights_version": self.version, "restarts": self.failures, **said.process.numbers, **engine}
        numbers |= {"running": running, "restarts": self.failures, "slowness": self.slowness}
        return PartLoad(
            name=self.name,
            kind="sampler",
            state=heard.state,
            seen_s=self.contact.seen_s,
            note=heard.note,
            facts=self.contact.report.facts,
            numbers=numbers,
        )

    async def _heard(self) -> Heard:
        if self.version < 0:
            return Heard(PartState.DOWN, note=ANEW) if self.failures else Heard(PartState.LOADING)
        heard = await self.contact.ask(self.actor.report.remote)
        return Heard(PartState.DOWN, note=ANEW) if heard == Heard(PartState.UP) else heard

    def known(self, keys: Sequence[bytes]) -> int:
        """Returns how many blocks of a prompt, from its beginning on, the replica has seen."""
        if not keys or keys[0] not in self.blocks:  # as in most of many replicas
            return 0
        return next((n for n, key in enumerate(keys) if key not in self.blocks), len(keys))
