"""Runs a program as a process of its own, in a sandbox or in a folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sojourn.agents.programs.site import KEPT_BYTES, Exit, Job, Site, Tail
from sojourn.envs.sandbox.command import GROUP, PASSWD, memory_file, python, sandbox_command
from sojourn.envs.sandbox.tree import MACHINE_ERRORS
from sojourn.errors import ConfigError, InfrastructureError

PORT, SOCKET = 8088, "/gateway"  # of the gateway, in a sandbox
CDP_PORT, CDP_SOCKET = 9222, "/browser"  # of the browser of the world
CDP_URL = f"http://127.0.0.1:{CDP_PORT}"
HELD_S = 5.0  # for which a process that left its group may keep the outputs open
TASK_FILE = "task.txt"
EXHAUSTED = (*MACHINE_ERRORS, errno.EAGAIN)  # the machine has too little of something now


@dataclass(frozen=True, kw_only=True)
class InFolder:
    """Runs a command as the user who trains, in a new folder that is deleted afterwards."""

    command: Sequence[str]
    variables: Mapping[str, str]
    files: Mapping[str, str]

    async def __call__(self, site: Site) -> Exit:
        job, folder = site.job, tempfile.mkdtemp(prefix="sojourn-program-")
        try:
            places = {"folder": folder, "socket": site.service.path}
            places |= {"cdp_socket": site.cdp_socket} if site.cdp_socket else {}
            await asyncio.to_thread(_write, folder, files_of(job, self.files, **places))
            command = [job.filled(part, **places) for part in self.command]
            own = {name: job.filled(value, **places) for name, value in self.variables.items()}
            variables = {**os.environ, **job.variables(), **own}
            return await _run(site, command, variables, folder)
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, True))


@dataclass(frozen=True, kw_only=True)
class InSandbox:
    """Runs a command in a sandbox: namespaces of its own with /usr and the folders `read`, an empty /task and /tmp, an
    unprivileged user, and no network but the gateway."""

    command: Sequence[str]
    variables: Mapping[str, str]
    files: Mapping[str, str]
    read: Sequence[str]
    memory_bytes: int
    disk_bytes: int
    processes: int

    async def __call__(self, site: Site) -> Exit:
        told, places = site.job.at(f"http://127.0.0.1:{PORT}"), {"folder": "/task", "socket": SOCKET}
        variables, sockets = dict(told.variables()), {PORT: (site.service.path, SOCKET)}
        if site.cdp_socket:
            places |= {"cdp_url": CDP_URL, "cdp_socket": CDP_SOCKET}
            variables["SOJOURN_CDP_URL"] = CDP_URL
            sockets[CDP_PORT] = (site.cdp_socket, CDP_SOCKET)
        own = {name: told.filled(value, **places) for name, value in self.variables.items()}
        given = {
            "command": [told.filled(part, **places) for part in self.command],
            "variables": {**variables, **own},
            "files": files_of(told, self.files, **places),
            "sockets": {port: inside for port, (_, inside) in sockets.items()},
            "memory_bytes": self.memory_bytes, "processes": self.processes,
        }  # fmt: skip
        program, passwd, group = (memory_file(data) for data in (_inside(given), PASSWD, GROUP))
        try:
            line = sandbox_command(
                [python(), "-I", "-S", "-c", f"import os; exec(os.fdopen({program}).read())"],
                disk_bytes=self.disk_bytes,
                passwd=passwd,
                group=group,
                binds={**dict(sockets.values()), **{path: path for path in self.read}},
            )
            variables = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
            return await _run(site, line, variables, "/", (program, passwd, group))
        finally:
            for number in (program, passwd, group):
                os.close(number)


def files_of(job: Job, files: Mapping[str, str], **places: str) -> dict[str, str]:
    """Returns the texts of a program's files by their paths, with the task in one of them."""
    return {TASK_FILE: job.task, **{path: job.filled(text, **places) for path, text in files.items()}}


def _inside(given: Mapping[str, object]) -> bytes:
    """Returns the program of process 1, with what it is given in place of its argument."""
    text = Path(__file__).with_name("inside.py").read_text()
    return f"import sys; sys.argv = ['', {json.dumps(given)!r}]\nexec({text!r})".encode()


def _write(folder: str, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (target := Path(folder, path)).parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


async def _run(
    site: Site, command: Sequence[str], variables: Mapping[str, str], folder: str, descriptors: Sequence[int] = ()
) -> Exit:
    """Runs a command to its end, or to the end of the task that waits for it. What it prints is kept as it comes."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True,
            pass_fds=descriptors, cwd=folder, env=dict(variables),
        )  # fmt: skip
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise InfrastructureError(f"{command[0]!r} cannot be started now ({error}): play fewer at once") from None
        raise ConfigError(f"agent.command: {command[0]!r} cannot be started ({error}): expected a program") from None
    outputs = ((process.stdout, site.output), (process.stderr, site.errors))
    reading = [asyncio.create_task(_read(stream, tail)) for stream, tail in outputs if stream]
    try:
        await process.wait()
        _kill(process.pid)
        await asyncio.wait(reading, timeout=HELD_S)
        return Exit(process.returncode or 0, site.output.text, site.errors.text)
    finally:
        _kill(process.pid)  # also what it started
        for task in reading:
            task.cancel()
        await asyncio.shield(process.wait())


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


async def _read(stream: asyncio.StreamReader, tail: Tail) -> None:
    """Reads an output to its end, and keeps the last of it."""
    while data := await stream.read(KEPT_BYTES):
        tail.add(data)
