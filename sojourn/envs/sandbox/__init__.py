"""A sandbox: a small machine without network in which an agent's code runs, and nowhere else.

    async with Sandbox() as sandbox:
        await sandbox.write({"data.txt": Entry.file("3\\n4\\n")})
        result = await sandbox.run("sort -rn data.txt > out.txt; cat out.txt")
        tree = await sandbox.tree()            # read from outside, after everything inside has stopped
        twin = await sandbox.fork()

Walls: bubblewrap's namespaces (no network, no other process to be seen, /usr to read, /task and /tmp in memory of
limited size), an unprivileged user, no way to more rights, a filter of system calls, and limits on memory, processes,
CPU and wall time, output, file sizes and the number of files and of open ones. Process 1 inside is ours (`inside.py`):
it cannot be killed or looked into from inside, and everything ends with it, also when this Python process is killed.

What an agent can do to its sandbox is its own failure: a command that passes a limit is stopped and says so, and a
sandbox that cannot go on raises `LostError`. Only a sandbox that does not start is the infrastructure's failure.

What lasts from command to command: files, the working directory, variables, exported ones and functions. What does
not: background processes (killed when their command ends), open files, aliases, options of the shell and traps. A
fork has all that lasts. `cell` keeps a Python session instead, which stands still between cells; it is not forked,
and `run` ends it.
While a session stands still, so does everything else inside: what cannot be stopped is killed, and the session with it.
Memory is counted 20 times a second, over processes, what the kernel keeps for them, and sockets, and bounded by the
kernel where this process may divide its control group (`groups.py`): see `risks`.
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

from sojourn.envs.sandbox.command import GROUP, PASSWD, python, sandbox_command
from sojourn.envs.sandbox.groups import Group
from sojourn.envs.sandbox.results import End, Limits, Result, format_result
from sojourn.envs.sandbox.seccomp import program
from sojourn.envs.sandbox.tree import Entry, LostError, Reader, Tree
from sojourn.errors import InfrastructureError

__all__ = ["End", "Entry", "Limits", "LostError", "Result", "Sandbox", "Tree", "format_result"]
PLACES = ("/task", "/tmp")
CONTROL = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), "\ufffd")  # of no use to a reader
KILLED = 128 + signal.SIGKILL
START_S, GRACE_S = 60.0, 60.0  # a loaded machine is slow; process 1 keeps the time that counts


@dataclass
class Sandbox:
    """One sandbox; `open` starts it, `close` leaves nothing. One thing at a time."""

    limits: Limits = field(default_factory=Limits)
    shell: bytes = b""  # what the next command's shell begins with: variables, functions, working directory
    _process: asyncio.subprocess.Process | None = None
    _first: int = -1  # a descriptor of process 1 inside
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
        """Returns the number of the process to kill from outside, for tests."""
        return self._process.pid if self._process else 0

    @property
    def folder(self) -> str:
        """The working directory of the next command, as bash would write it."""
        last = self.shell.decode(errors="replace").rstrip("\n").rpartition("\n")[2]
        return last.removeprefix("cd -- ") or "/task"

    @property
    def digest(self) -> str:
        """Returns a digest of what the next command's shell begins with."""
        return hashlib.sha256(self.shell).hexdigest()

    async def open(self) -> Sandbox:
        """Starts it; when cancelled, not before it has started: what is half built has no wall to kill it by."""
        opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait({opening})
            await self.close()
            raise
        return self

    async def _open(self) -> None:
        info, tell = os.pipe()
        os.set_blocking(info, False)
        lent = [tell, _lend(PASSWD), _lend(GROUP), _lend(_inside())]
        if rules := program():
            lent.append(_lend(rules))
        line = sandbox_command(
            [python(), "-I", "-S", "-c", f"import os; exec(os.fdopen({lent[3]}).read())"],
            disk_bytes=self.limits.disk_bytes,
            info=lent[0],
            passwd=lent[1],
            group=lent[2],
            seccomp=lent[4] if rules else None,
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
                pass_fds=lent,
                cwd="/",
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            )
            os.close(lent.pop(0))
            limits = {name: getattr(self.limits, name) for name in Limits.__dataclass_fields__}
            ready, _ = await self._ask({**limits, "places": PLACES, "python": python()}, b"", START_S)
            if ready != {"ready": True}:
                raise LostError(f"process 1 said {str(ready)[:100]}")
            first = json.loads(os.read(info, 65536))["child-pid"]
            self._first = os.pidfd_open(first)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._folders = {path: os.open(f"/proc/{first}/root{path}", flags) for path in PLACES}
        except (LostError, OSError, ValueError, KeyError) as error:
            said = await self._complaint()
            await self.close()
            raise InfrastructureError(
                f"a sandbox did not start ({said or error}): bubblewrap must be allowed to make user namespaces here"
            ) from None
        finally:
            for fd in (info, *lent):
                os.close(fd)

    async def run(self, command: str, timeout_s: float = 10.0) -> Result:
        """Runs one bash command, standard input empty; what it leaves running is killed."""
        said = command.replace("\0", "").encode(errors="replace")
        head = {"do": "shell", "command_bytes": len(said), "timeout_s": timeout_s}
        answer, data = await self._ask(head, said + self.shell, timeout_s + GRACE_S)
        size = answer["state_bytes"]
        if size is not None:
            self.shell, data = data[:size], data[size:]
        return self._result(answer, data)

    async def cell(self, code: str, timeout_s: float = 10.0) -> Result:
        """Runs Python in a session that keeps its variables; a cell that passes a limit takes the session with it."""
        head = {"do": "cell", "timeout_s": timeout_s}
        answer, data = await self._ask(head, code.encode(errors="replace"), timeout_s + GRACE_S)
        return self._result(answer, data)

    async def restart(self) -> None:
        """Ends the session of `cell`: the next one begins anew."""
        await self._ask({"do": "restart"}, b"", GRACE_S)

    async def write(self, entries: Mapping[str, Entry]) -> list[str]:
        """Puts files, folders and links in, below /task where the path does not begin with /; says which failed."""
        head, data = [], []
        for path, entry in entries.items():
            place = path if path.startswith("/") else f"/task/{path}"
            head.append((place, entry.kind, entry.mode, len(entry.data), entry.mtime))
            data.append(entry.data)
        answer, _ = await self._ask({"do": "write", "entries": head}, b"".join(data), GRACE_S)
        return answer["failed"]

    async def tree(self) -> Tree:
        """Everything in /task and /tmp, read from outside. Works also on a sandbox that was lost."""
        if not self._folders:
            raise InfrastructureError("the files of a sandbox were asked for while it was not open")
        own = {path: os.dup(fd) for path, fd in self._folders.items()}  # `close` may come while the thread reads
        reading = asyncio.get_running_loop().run_in_executor(None, self._read, own)
        return await asyncio.shield(reading)  # or a cancellation, while it still queues, would leave the folders open

    async def fork(self) -> Sandbox:
        """A new sandbox with the same files, variables, functions and working directory."""
        tree = await self.tree()
        twin = await Sandbox(self.limits, self.shell).open()
        try:
            await twin.write(tree.entries)
        except BaseException:
            await twin.close()
            raise
        return twin

    async def close(self) -> None:
        """Kills everything inside and waits until it is gone; any number of times."""
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
        """Sends a request to process 1 and reads its answer; a sandbox that does not answer is lost."""
        if self._process is None or self._lost:
            raise LostError(self._lost or "it was never opened")
        if self._busy:
            raise InfrastructureError("a sandbox was asked while busy, or after it was cancelled: one thing at a time")
        self._busy = True  # and stays so when this is cancelled: what comes back would be of another request
        try:
            async with asyncio.timeout(limit_s):  # not `wait_for`, which loses a cancellation before Python 3.12
                answer = await _exchange(self._process, head, payload)
        except (OSError, EOFError, TimeoutError) as error:
            self._lost = f"its process 1 has ended ({type(error).__name__})"
            raise LostError(self._lost) from None
        self._busy = False
        return answer

    async def _complaint(self) -> str:
        """Returns what bubblewrap said before it gave up."""
        if self._process is None or self._process.stderr is None:
            return ""
        _kill(self._process)
        return (await self._process.stderr.read())[:300].decode(errors="replace").strip()

    def _result(self, answer: Mapping[str, Any], data: bytes) -> Result:
        left_out, place = answer["cut"]
        parts = [data[:place], data[place:]]
        middle = f"\n[... {left_out} bytes left out ...]\n" if left_out else ""
        text = middle.join(part.decode(errors="replace") for part in parts) if middle else data.decode(errors="replace")
        short = self._group is not None and self._group.ran_out() and answer["code"] == KILLED
        end = End.MEMORY if short else End(answer["end"])
        return Result(text.translate(CONTROL), answer["code"], end, answer.get("fresh", False))


async def _exchange(process: Any, head: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    said = json.dumps(head).encode()
    process.stdin.write(struct.pack("!II", len(said), len(payload)) + said + payload)
    await process.stdin.drain()
    sizes = struct.unpack("!II", await process.stdout.readexactly(8))
    return json.loads(await process.stdout.readexactly(sizes[0])), await process.stdout.readexactly(sizes[1])


async def _end(process: Any, first: int, group: Group | None) -> None:
    """Ends all that a sandbox has outside of itself: its processes, then their group."""
    if process is not None:
        await _ended(process, first)
    if group is not None:
        await asyncio.to_thread(group.remove)


async def _ended(process: Any, first: int) -> None:
    """Kills process 1, and waits for it and for bubblewrap, which buries it: all others inside end before it does."""
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
        pass  # the kernel buries it when it can: nothing of ours waits for that
    finally:
        if first >= 0:
            os.close(first)
        _kill(process)
        process._transport.close()


async def _readable(fd: int) -> None:
    """Waits until a descriptor can be read, which for one of a process is when it has ended."""
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
def _inside() -> bytes:
    """Returns the program of process 1, with what `inside.py` imports before it: it cannot see our files."""
    lines = ["import sys"]
    for name in ("usage", "pipes"):
        text = Path(__file__).with_name(f"{name}.py").read_text()
        lines.append(f"sys.modules['{__name__}.{name}'] = module = type(sys)('{name}')")
        lines.append(f"exec(compile({text!r}, '{name}.py', 'exec'), module.__dict__)")
    return "\n".join([*lines, Path(__file__).with_name("inside.py").read_text()]).encode()


def _lend(data: bytes) -> int:
    """A descriptor from which a child reads these bytes; not a pipe, for which there may be no room."""
    fd = os.memfd_create("sojourn")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
