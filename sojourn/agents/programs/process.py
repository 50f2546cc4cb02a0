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

from sojourn.agents.programs.presets import Started
from sojourn.agents.programs.site import KEPT_BYTES, Exit, Job, Site, Tail
from sojourn.envs.sandbox.command import GROUP, PASSWD, memory_file, python, sandbox_command
from sojourn.envs.sandbox.tree import MACHINE_ERRORS
from sojourn.errors import ConfigError, InfrastructureError

PORT, SOCKET = 8088, "/gateway"  # of the gateway, in a sandbox
CDP_PORT, CDP_SOCKET = 9222, "/browser"  # of the browser of the world
CDP_URL = f"http://127.0.0.1:{CDP_PORT}"
HELD_S = 5.0  # for which a process that left its group may keep the outputs open
TASK_FILE = "task.txt"
LONGEST_BYTES = (1 << 17) - 1  # of an argument, or of a variable with its name and "=", on Linux (MAX_ARG_STRLEN)
EXHAUSTED = (*MACHINE_ERRORS, errno.EAGAIN)  # the machine has too little of something now


@dataclass(frozen=True, kw_only=True)
class InFolder:
    """Runs a command as the user who trains, in a new folder that is deleted afterwards."""

    started: Started

    async def __call__(self, site: Site) -> Exit:
        folder = tempfile.mkdtemp(prefix="sojourn-program-")
        try:
            places = {"socket": site.service.path}
            places |= {"cdp_socket": site.cdp_socket} if site.cdp_socket else {}
            filled = filled_for(site.job, self.started, folder, **places)
            await asyncio.to_thread(_write, folder, filled.files)
            return await _run(site, filled.command, {**os.environ, **filled.variables}, folder)
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, True))


@dataclass(frozen=True, kw_only=True)
class InSandbox:
    """Runs a command in a sandbox: namespaces of its own with /usr and the folders `read`, an empty /task and /tmp, an
    unprivileged user, and no network but the gateway."""

    started: Started
    read: Sequence[str]
    memory_bytes: int
    disk_bytes: int
    processes: int

    async def __call__(self, site: Site) -> Exit:
        places, sockets = {"socket": SOCKET}, {PORT: (site.service.path, SOCKET)}
        if site.cdp_socket:
            places |= {"cdp_url": CDP_URL, "cdp_socket": CDP_SOCKET}
            sockets[CDP_PORT] = (site.cdp_socket, CDP_SOCKET)
        filled = filled_for(site.job.at(f"http://127.0.0.1:{PORT}"), self.started, "/task", **places)
        given = {
            **filled._asdict(), "sockets": {port: inside for port, (_, inside) in sockets.items()},
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


def filled_for(job: Job, started: Started, folder: str, **places: str) -> Started:
    """Returns how a program is started for a job: with the values of all placeholders, the variables by which it finds
    what it is told, and the task in a file. The task is in no variable where it is too long for one, or has a character
    of code 0, and the program is told of the file by {task_file}. Raises `InfrastructureError` where an argument or a
    variable cannot be given to a program."""
    file = f"{folder}/{TASK_FILE}"
    places = {"folder": folder, "task_file": file, **places}
    variables = {**job.variables(), "SOJOURN_TASK_FILE": file}
    variables |= {"SOJOURN_CDP_URL": places["cdp_url"]} if "cdp_url" in places else {}
    variables |= {name: job.filled(value, **places) for name, value in started.variables.items()}
    if started.mentions("{task_file}") and fault_of(f"SOJOURN_TASK={variables['SOJOURN_TASK']}"):
        del variables["SOJOURN_TASK"]
    command = tuple(job.filled(part, **places) for part in started.command)
    texts = {"an argument": command, "a variable": [f"{name}={value}" for name, value in variables.items()]}
    for kind, given in texts.items():
        if fault := next(filter(None, map(fault_of, given)), ""):
            raise InfrastructureError(
                f"{kind} of the program {fault}: expected a shorter task, or a program that reads it from its file: "
                "name {task_file} in agent.command, agent.variables or agent.files, in place of {task}"
            )
    files = {TASK_FILE: job.task, **{path: job.filled(text, **places) for path, text in started.files.items()}}
    return Started(command, variables, files)


def fault_of(text: str) -> str:
    """Returns why a text can be no argument of a program, and no variable with its name; empty where it can."""
    size = len(text.encode(errors="replace"))
    if size > LONGEST_BYTES:
        return f"has {size} bytes, of which it may have {LONGEST_BYTES}"
    return "has a character of code 0" if "\0" in text else ""


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
        if error.errno == errno.E2BIG:
            raise InfrastructureError(
                f"{command[0]!r} cannot be started, as its arguments and variables are too long together: let it read "
                "its task from the file {task_file}"
            ) from None
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
