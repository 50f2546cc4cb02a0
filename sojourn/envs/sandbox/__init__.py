"""Runs an agent's code in a sandbox: a small machine without network.

    async with Sandbox() as sandbox:
        await sandbox.write({"data.txt": Entry.file("3\\n4\\n")})
        result = await sandbox.run("sort -rn data.txt > out.txt; cat out.txt")
        tree = await sandbox.tree()            # read from outside, after everything inside has stopped
        copy = await sandbox.fork()

The protections are bubblewrap's namespaces (no network, no process of the outside visible, /usr read-only, /task and
/tmp in memory of limited size), an unprivileged user without a way to more rights, a filter of system calls, and limits
on memory, processes, CPU and wall time, output, file sizes, and the numbers of files and of open files. Process 1
inside is ours (`inside.py`): nothing inside can kill or inspect it, and everything ends with it, also when this Python
process is killed.

What an agent does to its sandbox is the agent's failure: a command that passes a limit is stopped and its result says
so, and a sandbox that cannot go on raises `LostError`. Only a sandbox that does not start is an infrastructure failure.

Files, the working directory, variables (exported ones too) and functions last from command to command, and a fork has
them. Background processes (killed when their command ends), open files, aliases, shell options and traps do not last.
`cell` keeps a Python session instead, which is stopped between cells; it is not forked, and `run` ends it. While a
session is stopped, so is everything else inside: what cannot be stopped is killed, and the session with it.

Memory is counted 20 times a second, over processes, what the kernel keeps for them, and sockets; the kernel bounds it
where this process may divide its control group (`groups.py`): see `risks`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sojourn.envs.sandbox.command import GROUP, PASSWD, memory_file, python, sandbox_command
from sojourn.envs.sandbox.groups import Group
from sojourn.envs.sandbox.results import End, Limits, Result, format_result
from sojourn.envs.sandbox.seccomp import program
from sojourn.envs.sandbox.tree import Entry, LostError, Reader, Tree
from sojourn.errors import InfrastructureError

__all__ = ["End", "Entry", "Limits", "LostError", "Result", "Sandbox", "Tree", "format_result"]
FOLDERS = ("/task", "/tmp")
# Control characters, except tab, line feed and carriage return, are replaced in outputs.
REPLACED_CONTROLS = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), "\ufffd")
KILLED = 128 + signal.SIGKILL
START_S, GRACE_S = 60.0, 60.0  # generous for a loaded machine: process 1 measures the time that counts


@dataclass
class Sandbox:
    """One sandbox: `open` starts it, `close` removes everything. It does one thing at a time."""

    limits: Limits = field(default_factory=Limits)
    shell: bytes = b""  # what the next command's shell restores: variables, functions, working directory
    _process: asyncio.subprocess.Process | None = None
    _first: int = -1  # a pidfd of process 1 inside
    _group: Group | None = None
    _folders: dict[str, int] = field(default_factory=dict)
    _busy: bool = False
    _lost: str = ""

    async def __aenter__(self) -> Sandbox:
        return await self.open()

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    @property
    def pid(self) -> int:
        """Returns the id of the process that tests kill from outside; 0 without one."""
        return self._process.pid if self._process else 0

    @property
    def folder(self) -> str:
        """Returns the working directory of the next command, quoted as bash does."""
        last = self.shell.decode(errors="replace").rstrip("\n").rpartition("\n")[2]
        return last.removeprefix("cd -- ") or "/task"

    @property
    def digest(self) -> str:
        """Returns a digest of what the next command's shell restores."""
        return hashlib.sha256(self.shell).hexdigest()

    async def open(self) -> Sandbox:
        """Starts the sandbox. A cancellation takes effect once it has started, as a half-built sandbox cannot be
        killed."""
        opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait({opening})
            await self.close()
            raise
        return self

    async def _open(self) -> None:
        info, info_write = os.pipe()
        os.set_blocking(info, False)
        child_fds = [info_write, memory_file(PASSWD), memory_file(GROUP), memory_file(_process_one())]
        if rules := program():
            child_fds.append(memory_file(rules))
        line = sandbox_command(
            [python(), "-I", "-S", "-c", f"import os; exec(os.fdopen({child_fds[3]}).read())"],
            disk_bytes=self.limits.disk_bytes,
            info=child_fds[0],
            passwd=child_fds[1],
            group=child_fds[2],
            seccomp=child_fds[4] if rules else None,
        )
        pipe = asyncio.subprocess.PIPE
        try:
            self._group = Group.make(self.limits)
            line = self._group.entered_by(line) if self._group else line
            self._process = await asyncio.create_subprocess_exec(
                *line,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
                pass_fds=child_fds,
                cwd="/",
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            )
            os.close(child_fds.pop(0))
            limits = {name: getattr(self.limits, name) for name in Limits.__dataclass_fields__}
            ready, _ = await self._ask({**limits, "places": FOLDERS, "python": python()}, b"", START_S)
            if ready != {"ready": True}:
                raise LostError(f"process 1 answered {str(ready)[:100]}")
            first = json.loads(os.read(info, 65536))["child-pid"]
            self._first = os.pidfd_open(first)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._folders = {path: os.open(f"/proc/{first}/root{path}", flags) for path in FOLDERS}
        except (LostError, OSError, ValueError, KeyError) as error:
            message = await self._bwrap_errors()
            await self.close()
            raise InfrastructureError(
                f"a sandbox did not start ({message or error}): bubblewrap must be allowed to make user namespaces here"
            ) from None
        finally:
            for fd in (info, *child_fds):
                os.close(fd)

    async def run(self, command: str, timeout_s: float = 10.0) -> Result:
        """Runs one bash command with empty standard input; processes that it leaves running are killed."""
        text = command.replace("\0", "").encode(errors="replace")
        head = {"do": "shell", "command_bytes": len(text), "timeout_s": timeout_s}
        answer, data = await self._ask(head, text + self.shell, timeout_s + GRACE_S)
        size = answer["state_bytes"]
        if size is not None:
            self.shell, data = data[:size], data[size:]
        return self._result(answer, data)

    async def cell(self, code: str, timeout_s: float = 10.0) -> Result:
        """Runs Python in a session that keeps its variables; a cell that passes a limit ends the session."""
        head = {"do": "cell", "timeout_s": timeout_s}
        answer, data = await self._ask(head, code.encode(errors="replace"), timeout_s + GRACE_S)
        return self._result(answer, data)

    async def restart(self) -> None:
        """Ends the session of `cell`; the next cell starts a new one."""
        await self._ask({"do": "restart"}, b"", GRACE_S)

    async def write(self, entries: Mapping[str, Entry]) -> list[str]:
        """Writes files, folders and links, relative to /task unless a path begins with /; returns those that failed."""
        head, data = [], []
        for path, entry in entries.items():
            target = path if path.startswith("/") else f"/task/{path}"
            head.append((target, entry.kind, entry.mode, len(entry.data), entry.mtime))
            data.append(entry.data)
        answer, _ = await self._ask({"do": "write", "entries": head}, b"".join(data), GRACE_S)
        return answer["failed"]

    async def tree(self) -> Tree:
        """Returns everything in /task and /tmp, read from outside; it works on a lost sandbox too."""
        if not self._folders:
            raise InfrastructureError("the files of a sandbox were asked for while it was not open")
        folders = {path: os.dup(fd) for path, fd in self._folders.items()}  # `close` may come while the thread reads
        reading = asyncio.get_running_loop().run_in_executor(None, self._read, folders)
        return await asyncio.shield(reading)  # else a cancellation while it still queues would leave the folders open

    async def fork(self) -> Sandbox:
        """Returns a new sandbox with the same files, variables, functions and working directory."""
        tree = await self.tree()
        copy = await Sandbox(self.limits, self.shell).open()
        try:
            await copy.write(tree.entries)
        except BaseException:
            await copy.close()
            raise
        return copy

    async def close(self) -> None:
        """Kills everything inside and waits until it is gone; may be called any number of times."""
        folders, self._folders = self._folders, {}
        first, self._first = self._first, -1
        process, self._process = self._process, None
        group, self._group = self._group, None
        self._lost = self._lost or "it is closed"
        for fd in folders.values():
            os.close(fd)
        if process is not None or group is not None:
            await asyncio.shield(_end(process, first, group))

    def _read(self, folders: Mapping[str, int]) -> Tree:
        reader = Reader(self.limits.files, 2 * self.limits.disk_bytes)
        try:
            reader.all(folders)
        finally:
            for fd in folders.values():
                os.close(fd)
        return Tree(reader.entries)

    async def _ask(self, head: dict[str, Any], payload: bytes, limit_s: float) -> tuple[dict[str, Any], bytes]:
        """Sends a request to process 1 and returns its answer; raises `LostError` where there is none."""
        if self._process is None or self._lost:
            raise LostError(self._lost or "it was never opened")
        if self._busy:
            raise InfrastructureError("a sandbox was asked while busy, or after it was cancelled: one thing at a time")
        self._busy = True  # it stays busy where this is cancelled, as the next answer would belong to this request
        try:
            async with asyncio.timeout(limit_s):  # not `wait_for`, which loses a cancellation before Python 3.12
                answer = await _exchange(self._process, head, payload)
        except (OSError, EOFError, TimeoutError) as error:
            self._lost = f"its process 1 has ended ({type(error).__name__})"
            raise LostError(self._lost) from None
        self._busy = False
        return answer

    async def _bwrap_errors(self) -> str:
        """Returns what bubblewrap wrote to standard error."""
        if self._process is None or self._process.stderr is None:
            return ""
        _kill(self._process)
        return (await self._process.stderr.read())[:300].decode(errors="replace").strip()

    def _result(self, answer: Mapping[str, Any], data: bytes) -> Result:
        left_out, cut = answer["cut"]
        parts = [data[:cut], data[cut:]]
        middle = f"\n[... {left_out} bytes left out ...]\n" if left_out else ""
        text = middle.join(part.decode(errors="replace") for part in parts) if middle else data.decode(errors="replace")
        out_of_memory = self._group is not None and self._group.ran_out() and answer["code"] == KILLED
        end = End.MEMORY if out_of_memory else End(answer["end"])
        return Result(text.translate(REPLACED_CONTROLS), answer["code"], end, answer.get("fresh", False))


async def _exchange(process: Any, head: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    header = json.dumps(head).encode()
    process.stdin.write(struct.pack("!II", len(header), len(payload)) + header + payload)
    await process.stdin.drain()
    sizes = struct.unpack("!II", await process.stdout.readexactly(8))
    return json.loads(await process.stdout.readexactly(sizes[0])), await process.stdout.readexactly(sizes[1])


async def _end(process: Any, first: int, group: Group | None) -> None:
    """Ends the processes of a sandbox, then removes their control group."""
    if process is not None:
        await _kill_and_wait(process, first)
    if group is not None:
        await asyncio.to_thread(group.remove)


async def _kill_and_wait(process: Any, first: int) -> None:
    """Kills process 1, and waits for it and for bubblewrap, which reaps it: all other processes inside end before it
    does."""
    try:
        if first < 0:
            _kill(process)
        else:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(first, signal.SIGKILL)
            async with asyncio.timeout(GRACE_S):
                await _readable(first)
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    except TimeoutError:
        pass  # the kernel ends it when it can, and nothing here depends on that
    finally:
        if first >= 0:
            os.close(first)
        _kill(process)
        process._transport.close()


async def _readable(fd: int) -> None:
    """Waits until a descriptor can be read; that of a process (a pidfd) can be read once the process has ended."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def _kill(process: Any) -> None:
    """Kills a process and its group.

    Not through asyncio, whose `kill` may take the exit code from the thread that waits for it.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@cache
def _process_one() -> bytes:
    """Returns the program of process 1, preceded by the modules that it imports, as it cannot see our files."""
    lines = ["import sys"]
    for name in ("usage", "pipes"):
        text = Path(__file__).with_name(f"{name}.py").read_text()
        lines.append(f"sys.modules['{__name__}.{name}'] = module = type(sys)('{name}')")
        lines.append(f"exec(compile({text!r}, '{name}.py', 'exec'), module.__dict__)")
    return "\n".join([*lines, Path(__file__).with_name("inside.py").read_text()]).encode()
