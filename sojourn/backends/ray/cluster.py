"""Starts or joins a Ray cluster, reserves what a run needs of it, and starts actors there."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import sojourn
from sojourn.errors import ConfigError, InfrastructureError, MissingExtraError
from sojourn.threads import prepare

log = logging.getLogger(__name__)
CONNECT_TIMEOUT_S = 5.0
RESERVE_TIMEOUT_S = 60.0
RETRY_S, SLOWEST_RETRY_S = 0.1, 5.0  # between two attempts to reach an actor that is down
LOCAL_CPUS = 1024  # of a cluster that is started here: its processes share the cores, however many they are
EVERYWHERE = ("HF_HUB_OFFLINE", "HF_HOME", "SOJOURN_CHROMIUM")  # variables that actors get, too
SLOW_START = "timed out during startup"  # in what Ray says where its processes take longer than it waits
HTTP2_SETTINGS = b"\x04"  # the type of the frame that both sides of a connection begin with (RFC 9113, section 3.4)
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + HTTP2_SETTINGS + b"\0\0\0\0\0"
_joined: list[Cluster] = []  # by this process, oldest first; Ray, too, is one for the whole process
SETTINGS = {  # variables that Ray and the actors read
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # by Ray's own choice (15) actors starve beside worlds that the driver plays
    "OMP_WAIT_POLICY": "passive",
}


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Holds what each of `count` equal actors reserves of a node."""

    what: str  # in messages, such as "samplers"
    count: int
    cpus: float
    gpus: float

    @property
    def bundle(self) -> dict[str, float]:
        return {name: amount for name, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount}


class Places(NamedTuple):
    """Holds what was reserved together: for each actor of these needs that reserves anything, a bundle of a placement
    group of Ray."""

    needs: Sequence[Needs]
    group: Any  # None where none of them reserves anything

    def bundle(self, needs: Needs, number: int) -> int:
        """Returns which bundle is that of an actor."""
        before = [one.count for one in self.needs[: self.needs.index(needs)] if one.bundle]
        return sum(before) + number


@dataclass(eq=False)
class Cluster:
    """A Ray cluster that this process has joined, and the places that are reserved there.

    A cluster that `join` started ends with the last of its `users`, who call `release`; where others of this process
    have joined it by then, with the last of theirs.
    """

    own: bool
    places: list[Places]  # those that were reserved together, the first ones for the policy
    users: int = 0

    @classmethod
    def join(cls, address: str, needs: Sequence[Needs]) -> Cluster:
        """Joins the cluster at an address ("auto": the one of this machine), or starts one on this machine for the
        empty address, and reserves the places there. Raises `ConfigError` where that is
        not possible; nothing is left running then."""
        ray = imported()
        own = not ray.is_initialized()
        if own:
            _start(ray, address)
        try:
            _require(ray, needs)
            joined = cls(own=own, places=[Places(needs, _reserve(ray, needs))])
            _joined.append(joined)
            return joined
        except BaseException:
            if own:
                ray.shutdown()
            raise

    @classmethod
    def current(cls) -> Cluster:
        """Returns the cluster that this process joined last."""
        assert _joined, "a backend that is open has joined one"
        return _joined[-1]

    def reserve(self, needs: Sequence[Needs]) -> None:
        """Reserves further places, which are given back with the others. Raises `ConfigError` where there is no
        room."""
        ray = imported()
        _require(ray, [*(one for places in self.places for one in places.needs), *needs])
        for one in needs:
            self.places.append(Places([one], _reserve(ray, [one])))

    def places_of(self, what: str) -> Needs:
        """Returns the needs of a name, for which places are reserved."""
        return next(one for places in self.places for one in places.needs if one.what == what)

    def actor(
        self,
        kind: type,
        needs: Needs,
        number: int | None,
        *arguments: Any,
        restarts: int = -1,
        concurrency: int = 100_000,
    ) -> Any:
        """Starts an actor in its place: number `number` of those of `needs`, in any of them that is free for None, or
        anywhere, reserving nothing, for -1. Ray starts one that died again, up to `restarts` times (-1: always), with
        the same arguments and without any of its state. It answers up to `concurrency` calls at once."""
        ray, placed = imported(), number is None or number >= 0
        options: dict[str, Any] = {
            "num_cpus": needs.cpus if placed else 0,
            "num_gpus": needs.gpus if placed else 0,
            "max_restarts": restarts,
        }
        if needs.bundle and placed:
            places = next(one for one in self.places if needs in one.needs)
            strategies = ray.util.scheduling_strategies
            options["scheduling_strategy"] = strategies.PlacementGroupSchedulingStrategy(
                places.group, placement_group_bundle_index=-1 if number is None else places.bundle(needs, number)
            )
        options["runtime_env"] = {"env_vars": _variables()}
        return ray.remote(kind).options(**options, max_task_retries=0, max_concurrency=concurrency).remote(*arguments)

    def hold(self) -> Cluster:
        """Adds a user."""
        self.users += 1
        return self

    def release(self) -> None:
        """Removes a user; after the last one the places are given back, and a cluster that was started here ends."""
        self.users -= 1
        if self.users > 0:
            return
        _joined.remove(self)
        ray = imported()
        if self.own and not _joined:
            ray.shutdown()
            return
        if self.own:
            _joined[-1].own = True
        for places in self.places if ray.is_initialized() else ():
            if places.group is not None:
                ray.util.remove_placement_group(places.group)


def prepare_actor(threads: int) -> None:
    """Prepares the process of an actor before torch is imported: with so many threads, or (0) with as many as Ray gives
    it processors, which Ray has set."""
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    prepare(threads)


def imported() -> Any:
    """Returns the module `ray`. Raises `MissingExtraError` where it is not installed."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise MissingExtraError(
            "backend 'ray' needs the package 'ray', which is not installed: pip install 'sojourn[ray]'"
        ) from None
    return ray


def _variables() -> dict[str, str]:
    """Returns the variables that actors get: those of `EVERYWHERE`, and where this process imports code from besides
    its own packages, such as a user's losses."""
    given = {name: os.environ[name] for name in EVERYWHERE if name in os.environ}
    paths = [os.path.abspath(path) for path in sys.path]
    return {**SETTINGS, **given, "PYTHONPATH": os.pathsep.join(p for p in paths if not p.startswith(sys.base_prefix))}


def _start(ray: Any, address: str) -> None:
    """Joins a cluster, or starts one on this machine."""
    settings: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        _require_answer(address)
        settings["address"] = address
    else:
        settings |= {"num_cpus": LOCAL_CPUS, "_node_ip_address": "127.0.0.1"}  # and Ray asks for its token
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _initialize(ray, settings)
    except Exception as error:  # whatever Ray raises while it connects
        where = f"at backend.address = '{address}'" if address else "on this machine"
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"no Ray cluster {where} could be joined ({lines[0][:200]}): start one by `ray start --head`, correct the "
            "address, or leave backend.address empty, which starts one for the run"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray's own would end a run without its last words
                signal.signal(number, handler)


def _initialize(ray: Any, settings: Mapping[str, Any], attempts: int = 3) -> None:
    """Starts Ray, again where that took longer than the 30 seconds that Ray waits, as on a machine that is busy."""
    try:
        ray.init(**settings)
    except Exception as error:  # Ray has no kind for it
        if attempts == 1 or SLOW_START not in str(error):
            raise
        log.warning("Ray did not start within 30 s, as this machine is busy: it is started again")
        _initialize(ray, settings, attempts - 1)


def _require_answer(address: str) -> None:
    """Raises where nobody answers at an address of the form host:port, or something that does not speak HTTP/2, as Ray
    does: Ray itself would wait there for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not host:
        return
    expected = "expected the address of a running Ray cluster, as `ray start --head` prints it"
    try:
        connection = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
    except OSError as error:
        raise ConfigError(f"backend.address = '{address}': nobody answers there ({error}): {expected}") from None
    with connection:
        if not _encrypted() and _first_frame(connection) != HTTP2_SETTINGS:
            raise ConfigError(f"backend.address = '{address}': what answers there is not Ray: {expected}")


def _first_frame(connection: socket.socket) -> bytes:
    """Returns the type of the first frame of HTTP/2 that the other side sends, or what it says in its place."""
    try:
        connection.settimeout(CONNECT_TIMEOUT_S)
        connection.sendall(HTTP2_HELLO)
        return connection.recv(9)[3:4]
    except OSError:
        return b""


def _encrypted() -> bool:
    return os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}


def _require(ray: Any, needs: Sequence[Needs]) -> None:
    """Raises where the whole cluster has less than is needed."""
    _require_room(ray.cluster_resources(), needs, "the cluster", "add nodes")


def require_here(needs: Sequence[Needs]) -> None:
    """Raises `ConfigError` where a cluster that would be started on this machine has less than is needed."""
    import torch

    if not imported().is_initialized():  # else the cluster is there, and is asked when places are reserved
        there = {"CPU": float(LOCAL_CPUS), "GPU": float(torch.cuda.device_count())}
        what = "a cluster that is started on this machine"
        _require_room(there, needs, what, "give backend.address a cluster that has them (--dry needs none to be there)")


def _require_room(there: Mapping[str, float], needs: Sequence[Needs], what: str, remedy: str) -> None:
    for name, plural in (("CPU", "CPUs"), ("GPU", "GPUs")):
        wanted = sum(one.count * one.bundle.get(name, 0.0) for one in needs)
        if wanted > there.get(name, 0.0):
            raise ConfigError(
                f"backend 'ray' needs {wanted:g} {plural} ({_spelled(needs, name)}), but {what} has "
                f"{there.get(name, 0.0):g}: {remedy}, or lower the counts in backend.samplers, backend.trainer, "
                "backend.envs and backend.models"
            )


def _reserve(ray: Any, needs: Sequence[Needs]) -> Any:
    """Reserves a place for each actor, or raises where others hold the cluster, or no node has room for one."""
    bundles = [one.bundle for one in needs for _ in range(one.count) if one.bundle]
    if not bundles:
        return None
    group = ray.util.placement_group(bundles, strategy="PACK")
    ready, _ = ray.wait([group.ready()], timeout=RESERVE_TIMEOUT_S)
    if ready:
        return group
    free: Mapping[str, float] = ray.available_resources()
    ray.util.remove_placement_group(group)
    raise ConfigError(
        f"the Ray cluster had no room for {len(bundles)} actors within {RESERVE_TIMEOUT_S:.0f} s "
        f"({_spelled(needs, 'CPU')}; free are {free.get('CPU', 0.0):g} CPUs and {free.get('GPU', 0.0):g} GPUs): wait "
        "until others have ended, add nodes, or lower the counts"
    )


def _spelled(needs: Sequence[Needs], name: str) -> str:
    parts = [
        f"{one.count} x {one.bundle[name]:g} for {one.what}" for one in needs if one.count and one.bundle.get(name)
    ]
    return ", ".join(parts)


def answers(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Waits for what actors were asked, by their names, and returns what they say. Raises what an actor raised, and an
    `InfrastructureError` for one that died."""
    ray, found = imported(), {}
    for name, answer in asked.items():
        try:
            found[name] = ray.get(answer)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise InfrastructureError(
                f"{name} died while it was opened ({reason[:300]}): see whether its node has enough memory, and "
                "`ray status`"
            ) from error
    return found


@cache
def code_digest() -> str:
    """Returns a digest of Sojourn's own source files, by which a node with other code is told."""
    root = Path(sojourn.__file__).parent
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def require_same_code(found: Mapping[str, str], expected: str = "") -> None:
    """Raises where any actor, by its name, runs other code of Sojourn than the driver, which is this process where its
    digest is not given."""
    own = expected or code_digest()
    others = sorted(name for name, digest in found.items() if digest != own)
    if others:
        raise ConfigError(
            f"{', '.join(others)}: the nodes have another version of Sojourn's code than the driver (digest "
            f"{found[others[0]]}, expected {own}): install the same version on all nodes"
        )
