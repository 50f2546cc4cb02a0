"""Samples with several replicas of a sampler, which come and go; a request goes where its prefix is cached."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sojourn.abilities import PartLoad
from sojourn.backends.ray.cluster import RETRY_S, SLOWEST_RETRY_S, Cluster, imported
from sojourn.backends.ray.replica import Replica
from sojourn.backends.ray.sampler_actor import StaleWeightsError
from sojourn.backends.torch.sampler.engine_stats import EngineStats
from sojourn.errors import InfrastructureError, RankError
from sojourn.timeline import Timeline
from sojourn.types import FloatArray, IntArray, Prompt, Sample, SamplingParams

if TYPE_CHECKING:
    from sojourn.backends.ray.packed_adapters import NamedAdapter
    from sojourn.backends.ray.stored_weights import StoredWeights

log = logging.getLogger(__name__)
BLOCK = 64  # tokens; prefixes are known by whole blocks
PACED = 32  # answers, after which replicas are compared again
STATS_TIMEOUT_S = 1.0  # after which a step's metrics leave out the replicas that did not answer
EXCESS = 8  # by how many requests more than twice the least a replica may have before a request leaves its prefix


class Answer(NamedTuple):
    """Holds what a replica answered, the version of its weights when it was asked, and how long it took."""

    value: Any
    replica: Replica
    version: int
    seconds: float


@dataclass(frozen=True)
class Since:
    """Samples with replicas whose weights have at least a version, the newest ones or not."""

    replicas: ReplicatedSampler
    version: int

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        return await self.replicas.sample(prompt, params, self.version)

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.replicas.score(prompt, self.version)

    async def close(self) -> None:
        """Does nothing: whoever opened the replicas closes them."""


class ReplicatedSampler:
    """Samples with replicas (`protocols.Sampler`); each sample is what any of them would return, as its seed decides.

    `weights` are those of version 1, which the actors have loaded already; without them (None), the actors have version
    0, the weights with which they open.

    `publish` returns at once, and every replica fetches the newest weights by itself; a request waits until its replica
    has them, unless older ones may answer it (`since_now`). A replica that fails is loaded anew while the others go on,
    and its requests are asked again elsewhere. Where none is left for `patience_s` seconds, requests fail with an
    `InfrastructureError`; where no replica has the newest weights and the node that kept them is lost, with a
    `RankError`, as the trainer's first rank was there.
    """

    def __init__(
        self,
        actors: Sequence[Any],
        cluster: Cluster,
        *,
        max_context: int,
        timeline: Timeline | None = None,
        patience_s: float = 120.0,
        weights: StoredWeights | None = None,
    ) -> None:
        self._version, self._weights = 0 if weights is None else 1, weights
        self.replicas = [
            Replica(f"sampler {number}", actor, version=self._version) for number, actor in enumerate(actors)
        ]
        self.max_context = max_context
        self._cluster, self._timeline, self._patience_s = cluster.hold(), timeline or Timeline(), patience_s
        self._changed = asyncio.Event()  # replaced whenever a replica becomes ready
        self._published, self._others_until = 0.0, 0.0  # in the event loop's time: see `_first_ready`
        self._moved = self._asked_again = self._answers = 0
        self._closed, self._gone = False, False
        ray = imported()
        self._lost = (ray.exceptions.RayActorError, ray.exceptions.ActorUnavailableError, StaleWeightsError)
        self._raised = ray.exceptions.RayTaskError

    @property
    def version(self) -> int:
        """Returns the version of the newest weights."""
        return self._version

    def since_now(self) -> Since:
        """Returns what samples by the weights that are the newest now, or newer ones (`AllowsOlder`)."""
        return Since(self, self._version)

    async def sample(
        self,
        prompt: Prompt,
        params: SamplingParams,
        oldest: int | None = None,
        adapter: NamedAdapter | None = None,
    ) -> Sample:
        """Samples by the newest weights, or by those of a version from `oldest` on; or an adapter over their base."""
        keys, more = _block_keys(prompt.tokens, of=adapter), _given(adapter)
        answer = await self._ask(keys, lambda one, version: one.sample.remote(prompt, params, version, *more), oldest)
        sample: Sample = answer.value
        answer.replica.note(answer.seconds, len(sample.tokens))
        self._answers += 1
        if self._answers % PACED == 0:
            self._compare()
        if answer.replica.version == answer.version:  # else its cache was emptied since
            answer.replica.remember(_block_keys(np.concatenate([prompt.tokens, sample.tokens]), keys, adapter))
        return _own(sample)

    async def score(self, prompt: Prompt, oldest: int | None = None, adapter: NamedAdapter | None = None) -> FloatArray:
        keys, more = _block_keys(prompt.tokens, of=adapter), _given(adapter)
        return (await self._ask(keys, lambda one, version: one.score.remote(prompt, version, *more), oldest)).value

    async def drop_adapter(self, name: str) -> None:
        """Lets the replicas that are up drop an adapter, if they have it; one that is started anew has none."""
        if not self._closed:
            dropped = [replica.actor.drop_adapter.remote(name) for replica in self._current(0)]
            await asyncio.gather(*dropped, return_exceptions=True)

    async def publish(self, weights: Any, version: int) -> None:
        """Takes a reference to packed weights in Ray's object store, which replicas fetch now; later requests are
        answered by them."""
        self._version, self._weights, self._gone = version, weights, False
        self._published, self._others_until = asyncio.get_running_loop().time(), 0.0
        for replica in self.replicas:
            self._refresh(replica)

    async def forget(self) -> None:
        """Empties the caches of all replicas that are up; one that is loaded has an empty cache anyway."""
        await self._ready()
        await asyncio.gather(
            *(replica.actor.forget.remote() for replica in self._current(self._version)), return_exceptions=True
        )
        for replica in self.replicas:
            replica.blocks.clear()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        ray = imported()
        tasks = [replica.loading for replica in self.replicas if replica.loading is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in self.replicas:
            replica.contact.close()
            ray.kill(replica.actor)
        self._cluster.release()

    def metrics(self) -> dict[str, float]:
        """Returns the engines' metrics together, since the last call, and how many requests left the replica that has
        their prefix, were asked again, and how many replicas are up."""
        ray = imported()
        since, before = EngineStats(), EngineStats()
        asked = {replica.actor.stats.remote(): replica for replica in self.replicas if replica.version >= 0}
        said, _ = ray.wait(list(asked), num_returns=len(asked), timeout=STATS_TIMEOUT_S) if asked else ([], [])
        for answer in said:
            replica = asked[answer]
            try:
                found: EngineStats = ray.get(answer)
            except self._lost:
                continue
            if found.steps < replica.before.steps:  # it was started anew
                replica.before = EngineStats()
            since, before, replica.before = _added(since, found), _added(before, replica.before), found
        moved, again, self._moved, self._asked_again = self._moved, self._asked_again, 0, 0
        up = sum(replica.version >= 0 for replica in self.replicas)
        slowest = max(replica.slowness for replica in self.replicas)
        own = {"sampler_moved": moved, "sampler_asked_again": again, "samplers_up": up, "sampler_slowest": slowest}
        return {**since.metrics(before), **own}

    async def part_loads(self) -> list[PartLoad]:
        """Returns what each replica does (`ReportsParts`)."""
        return await asyncio.gather(*(replica.part_load() for replica in self.replicas))

    # -- which replica answers

    async def _ask(self, keys: Sequence[bytes], call: Callable[[Any, int], Any], oldest: int | None) -> Answer:
        """Asks a replica, and another one where it is lost."""
        with self._timeline.during("sample"):
            while True:
                replica = await self._choose(keys, oldest)
                replica.running += 1
                replica.remember(keys)
                version, began = replica.version, asyncio.get_running_loop().time()
                answer = call(replica.actor, self._needed(oldest))
                try:
                    with replica.gauge.during():
                        found = Answer(await answer, replica, version, asyncio.get_running_loop().time() - began)
                    replica.contact.seen()
                    return found
                except asyncio.CancelledError:
                    imported().cancel(answer)
                    raise
                except self._lost as error:
                    self._fail(replica, error)
                    self._asked_again += 1
                except self._raised as error:
                    if not isinstance(error.cause, StaleWeightsError):
                        raise error.cause from None
                    self._fail(replica, error.cause)
                    self._asked_again += 1
                finally:
                    replica.running -= 1

    async def _choose(self, keys: Sequence[bytes], oldest: int | None) -> Replica:
        """Returns a replica whose weights are those that are needed, or newer."""
        while True:
            await self._ready(oldest)
            replica = self._preferred(keys, oldest)
            if replica.version >= self._needed(oldest):
                return replica
            replica.running += 1
            try:
                await replica.settled.wait()
            finally:
                replica.running -= 1

    def _preferred(self, keys: Sequence[bytes], oldest: int | None) -> Replica:
        """Returns the replica that has seen most of the prompt, unless it has far more to do than the least busy."""
        needed = self._needed(oldest)
        current = self._current(needed)
        loading: list[Replica] = []
        if asyncio.get_running_loop().time() < self._others_until:
            loading = [replica for replica in self.replicas if 0 <= replica.version < needed]
        least = min((*current, *loading), key=lambda replica: (replica.load, replica.slowness))
        best = max(current, key=lambda replica: replica.known(keys))
        if not best.known(keys):
            return least
        if best.load > 2 * least.load + EXCESS:
            self._moved += 1
            return least
        return best

    def _compare(self) -> None:
        """Compares how long replicas take for a token."""
        paces = {replica.name: replica.seconds / replica.tokens for replica in self.replicas if replica.tokens}
        median = statistics.median_low(paces.values())
        for replica in self.replicas:
            replica.slowness = max(paces.get(replica.name, median) / median, 1.0) if median else 1.0

    def _first_ready(self) -> None:
        """Lets requests wait for the other replicas, too, as long again as the first one took to load the newest
        weights: else it would get all the requests that have waited for these."""
        loop = asyncio.get_running_loop()
        self._others_until = 2 * loop.time() - self._published
        loop.call_at(self._others_until, self._settle)

    def _settle(self) -> None:
        for replica in self.replicas:
            replica.settle()

    def _needed(self, oldest: int | None) -> int:
        """Returns the version of weights that a request needs at least: the newest now, or `oldest`."""
        return self._version if oldest is None else oldest

    def _current(self, needed: int) -> list[Replica]:
        return [replica for replica in self.replicas if replica.version >= needed]

    async def _ready(self, oldest: int | None = None) -> None:
        """Waits until a replica has the weights that are needed."""
        deadline = asyncio.get_running_loop().time() + self._patience_s
        while not self._current(self._needed(oldest)):
            if self._closed:
                raise InfrastructureError("the samplers are closed: open them again")
            if self._gone:
                raise RankError(f"the weights of version {self._version} are lost with the node of the trainer's rank")
            left = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._changed.wait(), max(left, 0.0))
            except TimeoutError:
                raise InfrastructureError(
                    f"none of {len(self.replicas)} samplers had weights of version {self._needed(oldest)} for "
                    f"{self._patience_s:g} s: see whether their nodes are up (`ray status`), then go on by --resume"
                ) from None

    # -- replicas that fail, and weights

    def _fail(self, replica: Replica, error: Exception) -> None:
        if replica.version >= 0:
            log.warning("%s is lost (%s), and is loaded anew", replica.name, type(error).__name__)
            replica.version, replica.failures = -1, replica.failures + 1
            replica.blocks.clear()
            replica.settle()
            self._refresh(replica)

    def _refresh(self, replica: Replica) -> None:
        """Has a replica fetch the newest weights, unless it does so already."""
        if not self._closed and (replica.loading is None or replica.loading.done()):
            replica.loading = asyncio.get_running_loop().create_task(self._load(replica))

    async def _load(self, replica: Replica) -> None:
        """Loads the newest weights into a replica, again and again while it is down, or newer ones have come."""
        pause = RETRY_S
        while replica.version != self._version:
            version, weights = self._version, self._weights
            try:
                if weights is None:
                    await replica.actor.open.remote()
                else:
                    await replica.actor.load.remote(weights, version)
            except (*self._lost, self._raised) as error:
                log.debug("%s cannot be loaded yet: %s", replica.name, error)
                replica.version = -1
                self._gone = self._gone or (version == self._version and _is_loss_of_object(error))
                replica.settle()
                if self._gone:
                    self._wake()
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, SLOWEST_RETRY_S)
                continue
            replica.blocks.clear()
            if version == self._version and version and not self._current(version):
                self._first_ready()
            replica.version = version
            replica.settle()
            self._wake()

    def _wake(self) -> None:
        """Wakes what waits until any replica is ready."""
        self._changed.set()
        self._changed = asyncio.Event()


def _is_loss_of_object(error: Exception) -> bool:
    """Returns whether Ray no longer has an object that an actor was given."""
    return isinstance(getattr(error, "cause", None), imported().exceptions.ObjectLostError)


def _given(adapter: NamedAdapter | None) -> tuple[NamedAdapter, ...]:
    """Returns the last arguments of a call of an actor: none without an adapter, as vLLM's actors take none."""
    return () if adapter is None else (adapter,)


def _block_keys(tokens: IntArray, known: Sequence[bytes] = (), of: NamedAdapter | None = None) -> list[bytes]:
    """Returns a key for each whole block of tokens, which depends on all tokens up to its end, and on the adapter that
    reads them. `known` are the keys of the first blocks."""
    data, size = np.ascontiguousarray(tokens[BLOCK * len(known) :], dtype=np.int32).tobytes(), 4 * BLOCK
    keys, key = list(known), known[-1] if known else b"" if of is None else of.name.encode()[:64]
    for start in range(0, len(data) - size + 1, size):
        key = hashlib.blake2b(data[start : start + size], digest_size=8, key=key).digest()
        keys.append(key)
    return keys


def _own(sample: Sample) -> Sample:
    """Returns a sample whose arrays belong to this process: Ray hands out read-only ones, which torch warns of."""
    allowed = sample.allowed and tuple(None if ids is None else ids.copy() for ids in sample.allowed)
    return replace(sample, tokens=sample.tokens.copy(), logprobs=sample.logprobs.copy(), allowed=allowed)


def _added(one: EngineStats, other: EngineStats) -> EngineStats:
    return EngineStats(**{f.name: getattr(one, f.name) + getattr(other, f.name) for f in fields(EngineStats)})
