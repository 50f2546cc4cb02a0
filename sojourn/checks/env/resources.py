"""Finds leaks: lists the resources that this process holds, and finds those that grow each time something is done.

Resources may be opened once and kept for later plays (a pool, a connection, a library's helper process); a leak grows
each time. Processes and open files are seen only where there is /proc.
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

WAITS_S = (1.0, 0.2, 0.2, 0.2)  # a wait after each repetition: resources that grow in all of them leak
LAST_WAIT_S = 5.0  # the last wait, which is long enough for a busy machine
Held = Mapping[str, Mapping[Any, str]]
"""All resources that are held, by kind ("task", "process", ...): the key of each, and its name."""


class Process(NamedTuple):
    """A process of the system; its start time tells it from a later one with the same id."""

    number: int
    start: int


@contextmanager
def scratch() -> Iterator[Path]:
    """Makes a new folder the temporary folder of this process and of those that it starts, and yields it, so that
    everything in it is known to come from them."""
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
        except OSError:  # something there is kept as long as the process lives
            atexit.register(shutil.rmtree, folder, ignore_errors=True)


def held_resources(folder: Path) -> Held:
    """Returns everything that the process holds now, without the threads of asyncio's pool."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")]
    return {
        "task": {task: getattr(task.get_coro(), "__qualname__", task.get_name()) for task in tasks},
        "thread": {thread: thread.name for thread in threads},
        "process": processes(str(folder)),
        "open file": _open_files(),
        "temporary file": {name: name for name in os.listdir(folder)},
    }


async def growth(before: Held, folder: Path, wait_s: float) -> Held:
    """Returns the kinds of resources of which there are still more than before after `wait_s`, with the new ones."""
    until = time.monotonic() + wait_s
    while True:
        now = held_resources(folder)
        more = [kind for kind in now if len(now[kind]) > len(before[kind])]
        if not more or time.monotonic() > until:
            return {kind: {key: name for key, name in now[kind].items() if key not in before[kind]} for kind in more}
        await asyncio.sleep(0.02)


async def leak(act: Callable[[], Awaitable[Any]], folder: Path) -> str:
    """Describes the resources that are left every time `act` is done; empty where there are none."""
    await asyncio.sleep(0.001)  # lets cancelled tasks end
    first = before = held_resources(folder)
    kinds = set(first)
    for wait_s in WAITS_S:
        await act()
        kinds &= set(await growth(before, folder, wait_s))
        if not kinds:
            return ""
        before = held_resources(folder)
    left = await growth(first, folder, LAST_WAIT_S)
    return ", ".join(
        f"the {kind} {next(iter(resources.values()))}" for kind, resources in left.items() if kind in kinds
    )


def processes(mark: str) -> dict[Process, str]:
    """Returns the processes that come from this one: its descendants, and those with `mark` in their environment, as
    daemons have that have left their parents."""
    parents: dict[int, int] = {}
    running: dict[int, tuple[Process, str]] = {}
    for number in map(int, filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ())):
        with suppress(OSError, ValueError):
            name, _, rest = Path(f"/proc/{number}/stat").read_text(errors="replace").partition("(")[2].rpartition(") ")
            fields = rest.split()  # from the third on, see proc(5)
            parents[number] = int(fields[1])
            running[number] = (Process(number, int(fields[19])), name + " (dead)" * (fields[0] == "Z"))
    own = running[os.getpid()][0] if running else None
    mine = {n for n in running if own and running[n][0].start >= own.start and _descends(n, own.number, parents, mark)}
    return dict(running[n] for n in sorted(mine))


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
    targets: dict[tuple[str, str], str] = {}
    with suppress(OSError):
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the descriptor of the listing itself is closed again
                target = os.readlink(f"/proc/self/fd/{number}")
                targets[number, target] = target
    return targets


def end_leftovers(before: Held, folder: Path) -> None:
    """Cancels the tasks and kills the processes that are new since `before`; the rest ends with this process."""
    now = held_resources(folder)
    for task in now["task"].keys() - before["task"].keys():
        task.cancel()
    for process in now["process"].keys() - before["process"].keys():
        with suppress(ProcessLookupError):
            os.kill(process.number, signal.SIGKILL)
