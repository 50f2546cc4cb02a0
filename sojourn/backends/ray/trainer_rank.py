"""A rank: a process that trains the model, alone or with others, as the driver's `RayTrainer` tells it.

Torch is imported when the rank is made, after its threads are set.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import ray

from sojourn.backends.ray.cluster import code_digest, prepare_actor
from sojourn.backends.ray.reports import Report
from sojourn.gauge import Work
from sojourn.protocols import Loss, Stateful

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.backends.ray.packed_adapters import PackedAdapter
    from sojourn.backends.ray.packed_weights import PackedWeights
    from sojourn.backends.torch.backend import Torch
    from sojourn.backends.torch.trainer.teachers import Scored
    from sojourn.models.spec import Critic, Lora, Model
    from sojourn.optim import Optim
    from sojourn.types import Batch, FloatArray

T = TypeVar("T")
SIOCGIFADDR = 0x8915  # of Linux: asks for the address of a network interface
POLICY = 0  # the number of the policy's trainer; its copies are 1, 2, ...
PATIENCE = timedelta(hours=2)  # how long a rank waits for the others' share of a sum


class Place(NamedTuple):
    """Says where a rank stands among `size` ranks that meet at an address; the first of them opens it. With `shard`
    each holds a part of the weights that are trained. Each `context` of them compute each tree of tokens together."""

    rank: int
    size: int
    shard: bool = False
    context: int = 1
    host: str = ""
    port: int = 0


class Process(NamedTuple):
    host: str
    pid: int
    code: str


class Pass(NamedTuple):
    """Holds the metrics of a pass, and the states of the losses after it, pickled; and what the rank has done so far,
    and says of its process."""

    metrics: Mapping[str, float]
    states: bytes
    work: Work
    process: Report


class TrainerRank:
    """An actor of Ray that holds a `TorchTrainer`, its copies, and the frozen models beside it.

    It does one thing after the other, in the order in which the driver asks. Every rank of a team is told the same, and
    only the first answers, as all would answer the same. `threads` are those of torch (0: as many as Ray gives it
    processors).
    """

    def __init__(self, threads: int = 0) -> None:
        prepare_actor(threads)
        self._runner = asyncio.Runner()
        self._trainers: dict[int, Any] = {}
        self._made = 0
        self._rank = 0
        self._team: Any = None

    # -- the team

    def listen(self, count: int) -> tuple[str, int]:
        """Opens the address where `count` ranks meet, and returns it."""
        import torch.distributed as dist

        host = ray.util.get_node_ip_address()
        self._store = dist.TCPStore(host, 0, count, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
        return host, self._store.port

    def open(self, torch: Torch, model: Model, seed: int, critic: Critic | None, place: Place) -> Process:
        """Meets the other ranks, and loads the model."""
        from sojourn.backends.torch.backend import device_of

        self._rank = place.rank
        if place.size > 1:
            self._join(place, device_of(torch.device))
        self._load(torch, model, seed, critic)
        return Process(socket.gethostname(), os.getpid(), code_digest())

    def _join(self, place: Place, device: Any) -> None:
        import torch.distributed as dist

        from sojourn.backends.torch.trainer.team import Together

        if interface := _interface_of(ray.util.get_node_ip_address()):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)  # else that of the host's name, often the loopback
        if place.rank:
            self._store = dist.TCPStore(place.host, place.port, place.size, is_master=False)  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=self._store,
            rank=place.rank,
            world_size=place.size,
            timeout=PATIENCE,
        )
        self._team = Together(device, sharded=place.shard, context=place.context)

    def _load(self, torch: Torch, model: Model, seed: int, critic: Critic | None) -> None:
        from sojourn.backends.torch.backend import compute_dtype, device_of

        self._torch, self._sampled = torch, compute_dtype(model.dtype, device_of(torch.device))
        self._fresh = partial(torch.open_trainer, model=model, seed=seed, send=_send_nowhere, team=self._team)
        self._loaded = partial(torch.load, model, seed, defer=self._team is not None and self._team.sharded)
        self._trainers[POLICY] = self._fresh(self._loaded(), critic=critic)

    # -- what a trainer is asked

    def call(self, number: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the trainer of this number, and returns what it returns."""
        found = getattr(self._trainers[number], method)(*map(writable, args), **kwargs)
        answer = self._runner.run(found) if inspect.iscoroutine(found) else found
        return answer if self._rank == 0 else None

    def forward_backward(self, number: int, batch: Batch, losses: Sequence[Loss]) -> Pass:
        """Adds a gradient; returns the metrics with the states of the losses, by which the driver's own go on."""
        metrics = self._runner.run(self._trainers[number].forward_backward(batch, losses))
        states = [loss.state() if isinstance(loss, Stateful) else None for loss in losses]
        return Pass(metrics, pickle.dumps(states), self._work(), self._report())

    def _work(self) -> Work:
        """Returns what all trainers of the rank have done together."""
        done: list[Work] = [trainer.work() for trainer in self._trainers.values()]
        last_pass_s = self._trainers[POLICY].work().last_pass_s
        return Work(sum(one.passes for one in done), last_pass_s, sum(one.busy_s for one in done))

    def _report(self) -> Report:
        from sojourn.backends.torch.place import device_memory, place_of

        device = self._trainers[POLICY].passes.device
        return Report.here(place_of(device), device_memory(device))

    def vocabulary(self) -> int:
        return self._trainers[POLICY].vocabulary

    def ask_models(self, batches: Mapping[str, Batch], said: Sequence[Scored]) -> FloatArray | None:
        """Asks models that are here; `said` is what those behind servers said of the same step."""
        trainer = self._trainers[POLICY]
        answer = self._runner.run(trainer.ask_models(batches)) if batches else None
        trainer.teachers.scored = [*said, *(trainer.teachers.scored if batches else ())]
        return answer if self._rank == 0 else None

    def open_model(self, name: str, model: Model, weights: Path | None, seed: int, policy: Model) -> None:
        """Opens a frozen model."""
        self._torch.open_model(name, model, weights, seed, policy, self._trainers[POLICY])

    def copy(self, optim: Optim, reference: bool) -> int:
        """Copies the policy's trainer, and returns the number of the copy. The copy of a sharded model is loaded anew,
        and gets this process's part of the present weights."""
        self._made += 1
        policy = self._trainers[POLICY]
        anew = self._fresh(self._loaded()).passes if policy.passes.sharded else None
        self._trainers[self._made] = policy.copy(optim, reference=reference, anew=anew)
        return self._made

    def pack(self, adapter: Lora | None = None) -> tuple[PackedWeights | PackedAdapter | None, None]:
        """Returns the policy's weights, adapters merged in, in the type in which samplers compute, or an adapter alone,
        as it is trained; and nothing, which the driver can wait for without fetching them."""
        from sojourn.backends.ray.packed_adapters import PackedAdapter
        from sojourn.backends.ray.packed_weights import pack
        from sojourn.backends.torch.trainer.shards import full

        trainer = self._trainers[POLICY]
        if adapter is None:
            weights = trainer.weights()
        else:
            weights = ((name, full(tensor.detach())) for name, tensor in trainer.trainable.items())
        if self._rank == 0:
            packed = pack(weights, self._sampled if adapter is None else None)
            return packed if adapter is None else PackedAdapter(packed, adapter), None
        deque(weights, maxlen=0)  # which takes part in gathering them
        return None, None

    def close(self, number: int) -> None:
        """Closes a copy or, with the policy's trainer, all of the rank."""
        numbers = [*self._trainers] if number == POLICY else [number]
        for one in numbers:
            self._trainers.pop(one).close()


async def _send_nowhere(weights: Any, version: int) -> None:
    """The driver sends the weights that `pack` returns."""


def _interface_of(address: str) -> str:
    """Returns the name of the network interface that has an address of IPv4; empty where the system does not say."""
    import fcntl  # not on every system

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, SIOCGIFADDR, name.encode().ljust(256, b"\0"))
            except OSError:
                continue  # it has no such address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def writable(value: T) -> T:
    """Returns plain data with its arrays copied where they lie in Ray's memory, which cannot be written."""
    found: Any = value
    if isinstance(found, np.ndarray):
        return found if found.flags.writeable else found.copy()  # type: ignore[return-value]
    if isinstance(found, dict):
        return {key: writable(one) for key, one in found.items()}  # type: ignore[return-value]
    if isinstance(found, tuple | list):
        parts = [writable(one) for one in found]
        return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)  # type: ignore[return-value]
    return value
