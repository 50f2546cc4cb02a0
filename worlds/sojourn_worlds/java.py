"""Java virtual machines for the worlds that are written for them: shared by the episodes of a process, and ended with
it.

A machine ends when its standard input ends (py4j's `die_on_exit`), and so dies with this process, however that dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from sojourn.envs.about import require_module, require_program
from sojourn.envs.variables import inherited_variables
from sojourn.errors import InfrastructureError
from sojourn.threads import run_to_end

STOPPING_S = 5.0


@dataclass(eq=False)
class Machine:
    """A running machine; `new` makes an object, in it, of the class that was asked for."""

    gateway: Any
    process: subprocess.Popen[bytes]
    entry: str  # dotted name of a class
    lock: threading.Lock = field(default_factory=threading.Lock)  # for those who may not use it at the same time

    @classmethod
    def start(cls, world: str, extra: str, jar: str, entry: str, options: tuple[str, ...]) -> Machine:
        require_program("java", "default-jre-headless", world)
        java = require_module("py4j.java_gateway", f"sojourn-worlds[{extra}]", world)
        process = subprocess.Popen(  # as py4j launches it, without the keys in our environment
            [
                *("java", "-classpath", os.pathsep.join((java.find_jar_path(), jar)), *options),
                *("py4j.GatewayServer", "--die-on-broken-pipe", "0"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=os.path.dirname(jar),
            env=inherited_variables(),
        )
        assert process.stdout is not None
        if not (first_line := process.stdout.readline()).strip().isdigit():
            _end(process)
            raise InfrastructureError(f"{world}: java does not start, it says {first_line!r:.80}: run `java -version`")
        threading.Thread(target=_drain, args=(process.stdout,), daemon=True, name="drains java").start()
        gateway = java.JavaGateway(gateway_parameters=java.GatewayParameters(auto_field=True, port=int(first_line)))
        return cls(gateway, process, entry)

    def new(self) -> Any:
        java_class = self.gateway.jvm
        for name in self.entry.split("."):
            java_class = getattr(java_class, name)
        return java_class()

    def stop(self) -> None:
        with contextlib.suppress(Exception):  # whatever is wrong with it, its process is ended
            self.gateway.shutdown()
        _end(self.process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        process.wait(STOPPING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _drain(stream: IO[bytes]) -> None:
    """Reads what the machine prints, so that it never blocks."""
    with contextlib.suppress(OSError, ValueError):  # closed meanwhile
        while stream.read1(1 << 16):  # type: ignore[attr-defined]
            pass


@dataclass(eq=False)
class Shared:
    """One machine for all who hold it, started for the first and stopped after the last. Safe to use from threads."""

    world: str
    extra: str
    jar: str
    entry: str
    options: tuple[str, ...] = ()
    machine: Machine | None = None
    holders: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self) -> Machine:
        with self.lock:
            if self.machine is not None and self.machine.process.poll() is not None:
                self.machine.stop()  # it died: whoever held it will see, and this one gets a new one
                self.machine = None
            if self.machine is None:
                self.machine = Machine.start(self.world, self.extra, self.jar, self.entry, self.options)
            self.holders += 1
            return self.machine

    def release(self, machine: Machine | None = None) -> None:
        with self.lock:
            self.holders -= 1
            if self.holders == 0 and self.machine is not None:
                self.machine.stop()
                self.machine = None

    async def keep(self) -> None:
        lease = Lease(self)
        try:
            await asyncio.to_thread(lease.take)
        except BaseException:  # who gave this up will not let go
            await run_to_end(lease.give_back)
            raise

    async def let_go(self) -> None:
        await run_to_end(self.release)


@dataclass(eq=False)
class Pool:
    """A machine for each holder, for simulators that can play one episode at a time; reused by the next.

    All stop when nobody holds or keeps any. Safe to use from threads.
    """

    world: str
    extra: str
    jar: str
    entry: str
    options: tuple[str, ...] = ()
    idle: list[Machine] = field(default_factory=list)
    holders: int = 0  # of machines, and those who keep the pool
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self) -> Machine:
        with self.lock:
            while self.idle:
                machine = self.idle.pop()
                if machine.process.poll() is None:
                    break
                machine.stop()
            else:
                machine = Machine.start(self.world, self.extra, self.jar, self.entry, self.options)
            self.holders += 1
            return machine

    def release(self, machine: Machine | None = None) -> None:
        with self.lock:
            self.holders -= 1
            self.idle += [machine] if machine is not None else []
            while self.holders == 0 and self.idle:
                self.idle.pop().stop()

    async def keep(self) -> None:
        with self.lock:
            self.holders += 1

    async def let_go(self) -> None:
        await run_to_end(self.release)


class Lease:
    """An episode's hold of a machine, taken at most once and given back once, in any order.

    Give it back by `run_to_end`, or a cancellation could leave the machine held for good.
    """

    def __init__(self, shared: Shared | Pool) -> None:
        self.shared = shared
        self.machine: Machine | None = None
        self.ended = False
        self.lock = threading.Lock()

    def take(self) -> Machine:
        with self.lock:
            if self.ended:
                raise InfrastructureError(f"{self.shared.world} is closed: make another play")
            if self.machine is None:
                self.machine = self.shared.hold()
            return self.machine

    @contextlib.contextmanager
    def alone(self) -> Iterator[Machine]:
        """Holds the machine for one caller alone; refused where it was given back while this waited for it."""
        machine = self.take()
        with machine.lock:
            self.take()
            yield machine

    def give_back(self) -> None:
        with self.lock:
            self.ended = True
            if self.machine is not None:
                machine, self.machine = self.machine, None
                self.shared.release(machine)
