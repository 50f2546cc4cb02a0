"""The actors that train a model together, as the driver sees them."""

from __future__ import annotations

import asyncio
import concurrent.futures as futures
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError

from sojourn.abilities import PartLoad, PartState
from sojourn.backends.ray.cluster import require_same_code
from sojourn.backends.ray.trainer_rank import POLICY, Pass, Place, Process
from sojourn.errors import RankError
from sojourn.gauge import Work
from sojourn.protocols import Loss
from sojourn.types import Batch

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

    from sojourn.backends.torch.backend import Torch
    from sojourn.models.spec import Critic, Lora, Model

GRACE_S = 15.0  # how long after an error of one rank the others may take to end with theirs


class Ranks:
    """The actors that train together. All are asked the same in the same order, and the first answers.

    An error of a rank is raised as itself. Where one is lost, or they no longer agree, all end. `model` is the name of
    a further model that they train, empty for the policy.
    """

    def __init__(self, actors: Sequence[ActorHandle], model: str = "") -> None:
        self.actors: list[Any] = list(actors)
        self._model = model
        self.processes: list[Process] = []
        self._lost: str | None = None
        self._passes: list[Pass] = []  # the last one of each
        self._loaded: list[Work] = []  # at the last `part_loads`
        self._seen = self._taken = time.monotonic()  # when they answered last, and that
        self._asked: float | None = None  # when they were asked what they work at now
        self._asking = threading.Lock()  # held while all are asked the same

    def open(
        self,
        torch: Torch,
        model: Model,
        seed: int,
        critic: Critic | None,
        *,
        shard: bool = False,
        context_parallel: int = 1,
    ) -> None:
        """Lets the ranks find one another, and load the model. With `shard` each of several holds a part of the
        weights, gradients and moments; `context_parallel` of them compute each tree of tokens together. Where that
        fails, all end."""
        places, count = [Place(0, 1)], len(self.actors)
        try:
            if count > 1:
                [address] = self._answers([self.actors[0].listen.remote(count)])
                places = [Place(rank, count, shard, context_parallel, *address) for rank in range(count)]
            begun = zip(self.actors, places, strict=True)
            opened = [actor.open.remote(torch, model, seed, critic, place) for actor, place in begun]
            self.processes = self._answers(opened)
            require_same_code({self._name(rank): process.code for rank, process in enumerate(self.processes)})
        except BaseException:
            self._end("the trainer's ranks could not be opened")
            raise

    def all_now(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Calls a method of each actor, and waits for all answers."""
        return self._answers(self._begun(method, args, kwargs))

    async def all(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        return await self._awaited(self._begun(method, args, kwargs))

    async def forward_backward(self, number: int, batch: Batch, losses: Sequence[Loss]) -> list[Pass]:
        """Lets the trainers of a number add a gradient."""
        self._passes = await self.all("forward_backward", number, batch, list(losses))
        return self._passes

    def part_loads(self) -> list[PartLoad]:
        """Returns what each rank has done, by what it said with its last pass; none is asked, as each does one thing
        after the other."""
        now, loaded = time.monotonic(), self._loaded or [Work()] * len(self.actors)
        over_s, self._taken = max(now - self._taken, 1e-9), now
        self._loaded = [one.work for one in self._passes]
        return [self._load_of(rank, loaded[rank], over_s) for rank in range(len(self.processes))]

    def _load_of(self, rank: int, before: Work, over_s: float) -> PartLoad:
        facts: Mapping[str, str] = {"node": self.processes[rank].host, "process": str(self.processes[rank].pid)}
        numbers: dict[str, float] = {}
        if self._passes:
            said = self._passes[rank]
            facts, share = said.process.facts, (said.work.busy_s - before.busy_s) / over_s
            numbers = {"busy_share": min(share, 1.0), **said.work.numbers(before), **said.process.numbers}
        now = time.monotonic()
        if self._asked is not None:
            numbers["working_s"] = now - self._asked
        return PartLoad(
            name=f"trainer rank {rank}",
            kind="trainer rank",
            state=PartState.UP if self._lost is None else PartState.DOWN,
            seen_s=now - self._seen,
            note=self._lost or "",
            facts=facts,
            numbers=numbers,
        )

    async def pack(self, adapter: Lora | None = None) -> ObjectRef:
        """Returns where the first rank has put the packed weights, or the adapter alone, which are not fetched."""
        self._require_alive()
        with self._asking:
            begun = [actor.pack.options(num_returns=2).remote(adapter) for actor in self.actors]
        await self._awaited([done for _, done in begun])
        return begun[0][0]

    def close(self) -> None:
        """Ends all ranks; what fails on the way has no one left to tell."""
        if self._lost is None and ray.is_initialized():
            pending = [actor.close.remote(POLICY) for actor in self.actors]
            ray.wait(pending, num_returns=len(pending), timeout=GRACE_S)
        self._end("the ranks are closed")

    # -- inside

    def _begun(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[ObjectRef]:
        self._require_alive()
        if len(self.actors) > 1:
            args = [ray.put(arg) if isinstance(arg, Batch) else arg for arg in args]
        self._asked = time.monotonic()
        with self._asking:
            return [getattr(actor, method).remote(*args, **kwargs) for actor in self.actors]

    def _require_alive(self) -> None:
        if self._lost is not None:
            raise RankError(self._lost)

    def _answers(self, refs: Sequence[ObjectRef]) -> list[Any]:
        pending = [ref.future() for ref in refs]
        futures.wait(pending, return_when=futures.FIRST_EXCEPTION)
        if _needs_grace(pending):
            futures.wait(pending, timeout=GRACE_S)
        return self._settled(pending)

    async def _awaited(self, refs: Sequence[ObjectRef]) -> list[Any]:
        pending = [ref.future() for ref in refs]
        waiting = [asyncio.wrap_future(one) for one in pending]
        for one in waiting:
            one.add_done_callback(_take_error)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
        if _needs_grace(pending):
            await asyncio.wait(waiting, timeout=GRACE_S)
        return self._settled(pending)

    def _settled(self, pending: Sequence[futures.Future[Any]]) -> list[Any]:
        """Returns the answers of all ranks, or raises what one of them raised."""
        self._asked = None
        errors = {rank: _error(one) for rank, one in enumerate(pending)}
        failed = {rank: error for rank, error in errors.items() if error is not None}
        if not failed:
            self._seen = time.monotonic()
            return [one.result() for one in pending]
        dead = [rank for rank, error in failed.items() if _is_death(error)]
        if dead:
            memory = isinstance(failed[dead[0]], OutOfMemoryError)
            how = "was ended by Ray, as its node had too little memory" if memory else "died"
            raise RankError(self._end(f"{self._name(dead[0])} {how}"))
        rank, error = next(iter(failed.items()))
        if len(failed) < len(pending):  # the others wait for a share that never comes
            self._end(f"{self._name(rank)} failed, and the ranks no longer agree")
        raise error.cause if isinstance(error, RayTaskError) and error.cause is not None else error

    def _name(self, rank: int) -> str:
        where = f" (process {self.processes[rank].pid} on {self.processes[rank].host})" if self.processes else ""
        whose = f" of models.{self._model}" if self._model else ""
        return f"trainer rank {rank} of {len(self.actors)}{whose}{where}"

    def _end(self, why: str) -> str:
        for actor in self.actors if ray.is_initialized() else ():
            ray.kill(actor, no_restart=True)
        self._lost = why
        return why


def _take_error(one: asyncio.Future[Any]) -> None:
    """Tells asyncio that an error is known, also that of a rank that ends after others have failed."""
    if not one.cancelled():
        one.exception()


def _error(one: futures.Future[Any]) -> BaseException | None:
    """Returns what a call raised; None where it succeeded or goes on."""
    return one.exception() if one.done() and not one.cancelled() else None


def _is_death(error: BaseException) -> bool:
    return isinstance(error, RayActorError | OutOfMemoryError)


def _needs_grace(pending: Sequence[futures.Future[Any]]) -> bool:
    """Returns whether a rank failed otherwise than by its death while others go on: what they say tells why."""
    errors = [_error(one) for one in pending]
    failed = [error for error in errors if error is not None]
    return bool(failed) and not any(map(_is_death, failed)) and not all(one.done() for one in pending)
