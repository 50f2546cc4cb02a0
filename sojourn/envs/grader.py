"""Grades what an agent made (files, an archive, a database) in a separate process, which the agent's data may crash.

    grader = Grader()
    passed = await grader("my.world:check_of", task.data, tree=tree) is True
    await grader.close()

`check_of(*arguments)` is a function of a module that can be imported. It returns the check of a task, a function of a
`Tree` of files; other bytes are graded as a tree of one file. The check is made once for the same arguments, and only
from what the world knows. Then a process is forked for each grading, with limits on memory, CPU time and wall time; it
can write no file, has no input, and inherits no descriptor of this process. The result of the check comes back as JSON.
Whatever goes wrong once the check has the agent's files (it raises, runs out of memory, is too slow, crashes) gives
None, which is not a pass, as the agent's files caused it. `InfrastructureError` is raised only where no check could
run. A bug in the check gives None too: call the check directly to see it.

The processes are forked from one small process that does nothing else, never from this one with its threads and its
gigabytes. It starts when a grader is first asked, serves all graders of this process, and ends with the last `close`
or when this process dies. A world whose family keeps a grader open between `open` and `close` does not start it again
for each play.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, BinaryIO

from sojourn.envs.sandbox.tree import Entry, Tree
from sojourn.envs.variables import inherited_variables
from sojourn.errors import InfrastructureError
from sojourn.threads import run_to_end

MAX_REQUEST_BYTES, MAX_ANSWER_BYTES = 2**16, 2**20  # bytes
GRACE_S = 60.0  # beyond the limit of one grading: for the process to start on a busy machine, and to import a world
STARTED, FAILED = b"=", b"!"  # the first byte of an answer: the check runs, or could not be run
Check = Callable[[Tree], Any]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one grading; memory is counted beyond the files that it reads."""

    memory_bytes: int = 2**28
    cpu_s: int = 10
    wall_s: float = 60.0


class Grader:
    """Runs checks for a play or for a family; the grading process lives as long as any grader is open."""

    def __init__(self, limits: Limits = Limits()) -> None:
        self.limits = limits
        self.is_open = False

    async def __call__(self, function: str, *arguments: Any, tree: Tree) -> Any:
        """Returns the result of the check that `function` makes from these arguments, applied to the files; None where
        the check fails on them.

        The function is named "module:name", and its arguments are JSON. A cancelled grading is killed.
        """
        request = json.dumps([function, arguments, asdict(self.limits)]).encode()
        if len(request) > MAX_REQUEST_BYTES:
            raise ValueError(f"the arguments of {function} have {len(request)} bytes as JSON: name a task by its seed")
        await self.open()
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            await run_to_end(_FORK_SERVER.send, request, tree, theirs)
            try:
                async with asyncio.timeout(self.limits.wall_s + GRACE_S):
                    answer = await _receive_all(ours)
            except TimeoutError:
                raise InfrastructureError(f"{function}: the grading process does not answer") from None
        if not answer.startswith(STARTED):
            reason = answer[1:].decode(errors="replace") or "the grading process has ended"
            raise InfrastructureError(f"{function}: {reason}")
        return _parse_answer(answer[1:])

    async def open(self) -> None:
        if not self.is_open:
            self.is_open = True
            _FORK_SERVER.hold()

    async def close(self) -> None:
        """Ends the process with the last open grader; may be called any number of times."""
        if self.is_open:
            self.is_open = False
            await run_to_end(_FORK_SERVER.release)


class _ForkServer:
    """Controls, from this process, the process that forks for each grading. It may be used from several threads."""

    def __init__(self) -> None:
        self.lock, self.counting = threading.Lock(), threading.Lock()  # the second is never held for long
        self.holders = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def hold(self) -> None:
        with self.counting:
            self.holders += 1

    def release(self) -> None:
        with self.lock:
            with self.counting:
                self.holders -= 1
            if not self.holders:
                self._stop()

    def send(self, request: bytes, tree: Tree, answer: socket.socket) -> None:
        """Asks the process to fork for this request, after starting it where it does not run; closes `answer` here."""
        with answer, _pack(tree) as files:
            try:
                with self.lock:
                    self._ensure_started()
                    assert self.control is not None
                    socket.send_fds(self.control, [request], [files.fileno(), answer.fileno()])
            except OSError as error:
                raise InfrastructureError(f"the grading process cannot be asked: {error}") from error

    def _ensure_started(self) -> None:
        if not self.holders:
            raise InfrastructureError("a grader was closed while it was asked")
        if self.ended:
            self._stop()
            self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
            variables = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**inherited_variables(), **variables},
                start_new_session=True,
            )
        self.control = ours

    def _stop(self) -> None:
        """Closes the control socket, upon which the process ends, and waits for its end."""
        control, self.control = self.control, None
        process, self.process = self.process, None
        if control is not None:
            control.close()
        if process is not None:
            process.wait()


_FORK_SERVER = _ForkServer()


async def _receive_all(answer: socket.socket) -> bytes:
    """Returns all bytes until the end; stops once there are more than `MAX_ANSWER_BYTES`."""
    loop, data = asyncio.get_running_loop(), b""
    while len(data) <= MAX_ANSWER_BYTES and (part := await loop.sock_recv(answer, 65_536)):
        data += part
    return data


def _parse_answer(answer: bytes) -> Any:
    try:
        return json.loads(answer) if len(answer) < MAX_ANSWER_BYTES else None
    except (ValueError, RecursionError):  # it was killed while it answered
        return None


def _pack(tree: Tree) -> BinaryIO:
    """Writes a tree to a file in memory: the length of the header, the header (each entry without its data), the
    data."""
    entries = tree.entries.items()
    head = json.dumps([(path, e.kind, len(e.data), e.mode, e.mtime) for path, e in entries]).encode()
    file = open(os.memfd_create("graded"), "wb")  # noqa: SIM115  (`send` closes it)
    file.write(struct.pack("!Q", len(head)) + head)
    file.writelines(entry.data for _, entry in entries)
    file.flush()
    return file


# The process that is forked


def serve(number: int) -> None:
    """Forks for every request until the asking process is gone; the kernel reaps the forked processes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=number) as control:
        while True:
            request, files, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 2)
            if not request:
                return
            with socket.socket(fileno=files[1]) as answer:
                _fork_for(request, files[0], answer, control)
            os.close(files[0])


def _fork_for(request: bytes, files: int, answer: socket.socket, control: socket.socket) -> None:
    try:
        check, limits = _parse_request(request)
        child = os.fork()
    except Exception as error:  # no check can run: told to the asking process, which raises it
        with contextlib.suppress(OSError):
            answer.sendall(FAILED + f"{type(error).__name__}: {error}".encode(errors="replace")[:1_000])
        return
    if child == 0:
        try:
            control.close()
            answer.sendall(STARTED)
            _apply_limits(limits, os.fstat(files).st_size, answer)
            result = json.dumps(check(_unpack(files))).encode()
            # O_ASYNC is cleared: its signal, which ends this process, also tells that there is room to write
            fcntl.fcntl(answer, fcntl.F_SETFL, 0)
            answer.sendall(result)
        finally:
            os._exit(0)


@lru_cache(256)
def _parse_request(request: bytes) -> tuple[Check, Limits]:
    function, arguments, limits = json.loads(request)
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)(*arguments), Limits(**limits)


def _apply_limits(limits: Limits, read_bytes: int, answer: socket.socket) -> None:
    """Has the kernel end this process at its limits, and when nobody waits for the answer any more."""
    signal.setitimer(signal.ITIMER_REAL, limits.wall_s)  # its signal has no handler, so it ends this process
    fcntl.fcntl(answer, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(answer, fcntl.F_SETFL, fcntl.fcntl(answer, fcntl.F_GETFL) | os.O_ASYNC)
    with contextlib.suppress(BlockingIOError):
        answer.recv(1, socket.MSG_DONTWAIT)  # returns where it was closed before O_ASYNC was set
        os._exit(0)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    memory = used + 3 * read_bytes + limits.memory_bytes
    for kind, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 16),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def _unpack(files: int) -> Tree:
    with open(files, "rb", closefd=False) as file:
        file.seek(0)
        (size,) = struct.unpack("!Q", file.read(8))
        head = json.loads(file.read(size))
        return Tree({path: Entry(kind, file.read(count), mode, mtime) for path, kind, count, mode, mtime in head})
