"""What this process holds, and what it holds more of every time that something is done.

Much may be opened once and kept for later plays (a pool, a connection, a library's own helper); a leak is what grows
each time. Processes and open files are seen where there is /proc, and not elsewhere.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE_S = (1.0, 0.2, 0.2, 0.2)  # what grows so often in a row is a leak; what was closed may take so long to go
LAST_PATIENCE_S = 5.0  # and all of it together so long, on a busy machine
Held = Mapping[str, Mapping[Any, str]]
"""By kind ("task", "process", ...), everything held: what tells it from others, and its name."""


class Process(NamedTuple):
    """A process of the system; its start tells it from a later one of the same number."""

    number: int
    start: int


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder for this process and what it starts, so that whatever is put there is known to be its own."""
    folder, before = Path(tempfile.mkdtemp(prefix="check-")), tempfile.tempdir
    variable = os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = before
        os.environ.pop("TMPDIR")
        if variable is not None:
            os.environ["TMPDIR"] = variable
        try:
            folder.rmdir()
        except OSError:  # something is kept there for as long as the process lives
            atexit.register(shutil.rmtree, folder, ignore_errors=True)


def held_resources(folder: Path) -> Held:
    """Everything that the process holds now; threads of asyncio's own pool are left out."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")]
    return {
        "task": {task: getattr(task.get_coro(), "__qualname__", task.get_name()) for task in tasks},
        "thread": {thread: thread.name for thread in threads},
        "process": processes(str(folder)),
        "open file": _open_files(),
        "temporary file": {name: name for name in os.listdir(folder)},
    }


async def growth(before: Held, folder: Path, patience_s: float) -> Held:
    """The kinds of which there is still more than before after so long, with what is new of them."""
    until = time.monotonic() + patience_s
    while True:
        now = held_resources(folder)
        more = [kind for kind in now if len(now[kind]) > len(before[kind])]
        if not more or time.monotonic() > until:
            return {kind: {key: name for key, name in now[kind].items() if key not in before[kind]} for kind in more}
        await asyncio.sleep(0.02)


async def leak(act: Callable[[], Awaitable[Any]], folder: Path) -> str:
    """What is left every time that `act` is done, in words; empty where nothing is."""
    await asyncio.sleep(0.001)  # what has been cancelled ends
    first = before = held_resources(folder)
    kinds = set(first)
    for patience_s in PATIENCE_S:
        await act()
        kinds &= set(await growth(before, folder, patience_s))
        if not kinds:
            return ""
        before = held_resources(folder)
    left = await growth(first, folder, LAST_PATIENCE_S)
    return ", ".join(f"the {kind} {next(iter(of.values()))}" for kind, of in left.items() if kind in kinds)


def processes(mark: str) -> dict[Process, str]:
    """The processes that come from this one: its children and theirs, and those who have `mark` in their environment,
    which daemons do that have left their parents."""
    parents: dict[int, int] = {}
    found: dict[int, tuple[Process, str]] = {}
    for number in map(int, filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ())):
        with suppress(OSError, ValueError):
            name, _, rest = Path(f"/proc/{number}/stat").read_text(errors="replace").partition("(")[2].rpartition(") ")
            fields = rest.split()  # from the third on, see proc(5)
            parents[number] = int(fields[1])
            found[number] = (Process(number, int(fields[19])), name + " (dead)" * (fields[0] == "Z"))
    own = found[os.getpid()][0] if found else None
    mine = {n for n in found if own and found[n][0].start >= own.start and _descends(n, own.number, parents, mark)}
    return dict(found[n] for n in sorted(mine))


def _descends(number: int, ancestor: int, parents: Mapping[int, int], mark: str) -> bool:
    if number == ancestor:
        return False
    above = number
    while above := parents.get(above, 0):
        if above == ancestor:
            return True
    with suppress(OSError):
        return mark.encode() in Path(f"/proc/{number}/environ").read_bytes()
    return False


def alive(process: Process) -> bool:
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{process.number}/stat").read_text(errors="replace").rpartition(") ")[2].split()
        return int(fields[19]) == process.start and fields[0] not in "ZX"
    return False


def _open_files() -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    with suppress(OSError):
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the listing's own is gone again
                target = os.readlink(f"/proc/self/fd/{number}")
                found[number, target] = target
    return found


def end_leftovers(before: Held, folder: Path) -> None:
    """Cancels the tasks and kills the processes that were not there before; the rest ends with this process."""
    now = held_resources(folder)
    for task in now["task"].keys() - before["task"].keys():
        task.cancel()
    for process in now["process"].keys() - before["process"].keys():
        with suppress(ProcessLookupError):
            os.kill(process.number, signal.SIGKILL)
